"""`reroll run`: a run that goes on by itself."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from reroll.cli.options import JsonOption, RunFileArgument, SetOption, load


def run(
    run_file: RunFileArgument,
    set_: SetOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what the back end would get, such as a batch script; start nothing."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Start a run where `launch.backend` says and return at once; status, logs and stop find it by its folder."""
    import json
    from dataclasses import asdict

    from reroll.api import RunFileError
    from reroll.checkpoints.config import CheckpointSection
    from reroll.cli.validate import file_problems
    from reroll.config.run import RunSection
    from reroll.launch.config import LaunchSection
    from reroll.launch.outputs import OUTPUTS
    from reroll.launch.start import make_output
    from reroll.launch.submission import job_of, submit
    from reroll.reporting.config import OutputSection
    from reroll.training.trainer import require_training_extra

    loaded = load(run_file, set_)
    section = loaded.get(LaunchSection)
    if dry_run:
        given = loaded.get(OutputSection).dir or OUTPUTS / f"{loaded.get(RunSection).name}-DATE-TIME"
        typer.echo(section.launcher(loaded).preview(job_of(loaded, given.absolute())))
        return
    if section.backend.name == "local":
        require_training_extra()
    problems = [*map(loaded.locate, section.launcher(loaded).problems(loaded)), *file_problems(loaded, thorough=False)]
    if problems:
        raise RunFileError(problems)
    output = make_output(loaded).absolute()
    loaded = load(run_file, [*(set_ or []), f"output.dir={json.dumps(str(output))}"])
    receipt = submit(loaded, output, _warn)
    if section.auto_resume and loaded.get(CheckpointSection).save_interval is None:
        _warn("checkpoint.save_interval is not set: if the run is killed, it begins anew")
    if json_:
        typer.echo(json.dumps({"output": str(output), **asdict(receipt)}, indent=2))
        return
    typer.echo(f"started by {section.backend.name!r}: {output}")
    name = shlex.quote(str(output))
    for command, purpose in (("status -f", "how it stands"), ("logs -f", "what it says"), ("stop", "end it cleanly")):
        typer.echo(f"  reroll {command} {name}".ljust(len(name) + 24) + f"# {purpose}")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
