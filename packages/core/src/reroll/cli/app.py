"""The application: built-in commands, then those of plugins."""

from __future__ import annotations

import os
import sys
from typing import cast

import typer

from reroll.api import WORKER_LOST, PluginError, RerollError, RunFileError, WorkerDied


def build() -> typer.Typer:
    """The whole command line."""
    from reroll.cli import (
        data,
        export,
        generate,
        logs,
        new_plugin,
        plan,
        plugins,
        run,
        score,
        serve,
        status,
        stop,
        train,
        validate,
    )
    from reroll.plugins import installed_plugins

    app = typer.Typer(
        name="reroll",
        help="Reinforcement learning for language models, made of plugins.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command("plan")(plan.plan)
    app.command("validate")(validate.validate)
    app.command("train")(train.train)
    app.command("run")(run.run)
    app.command("status")(status.status)
    app.command("stop")(stop.stop)
    app.command("logs")(logs.logs)
    app.command("export")(export.export)
    app.add_typer(
        generate.app,
        name="generate",
        help="Attempt tasks with frozen weights: pass rates, transcripts, an index. `reroll generate RUN.TOML` is "
        "`reroll generate run RUN.TOML`, whose options `reroll generate run --help` lists.",
    )
    app.command("score")(score.score)
    app.add_typer(data.app, name="data", help="Named data sets, made ready once for runs.")
    app.command("serve")(serve.serve)
    app.command("plugins")(plugins.plugins)
    app.command("new-plugin")(new_plugin.new_plugin)
    manager = installed_plugins()
    taken = {command.name for command in app.registered_commands}
    for name in manager.names("commands"):
        try:
            given = manager.get("commands", name)
        except PluginError as error:
            print(f"warning: {error}", file=sys.stderr)
            continue
        if name in taken:
            print(f"warning: {given.distribution} gives a command {name!r}, which is reroll's own", file=sys.stderr)
        else:
            app.add_typer(cast(typer.Typer, given.cls), name=name)
    return app


def main() -> None:
    """Entry point: errors that a user can act on are printed without a traceback."""
    try:
        build()()
    except RunFileError as error:
        count = len(error.problems)
        print(f"{count} fault{'s' if count > 1 else ''} in the run file:", file=sys.stderr)
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        sys.exit(2)
    except RerollError as error:
        print(f"error: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            if not note.startswith("Traceback"):  # where it happened in a worker; that is in the run's log
                print(f"  {note}", file=sys.stderr)
        sys.exit(WORKER_LOST if isinstance(error, WorkerDied) else 1)
    except BrokenPipeError:  # who read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
