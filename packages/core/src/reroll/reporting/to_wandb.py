"""Weights & Biases."""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from reroll.api import Config, RunContext
from reroll.reporting.background import BackgroundTracker
from reroll.reporting.catalog import comes_with_steps
from reroll.reporting.config import RUN_FILE
from reroll.reporting.generations import COLUMNS, rows
from reroll.reporting.kept import COLLECTIONS, keep_lines

logger = logging.getLogger("reroll")
ROWS = "rows.jsonl"
"""In the folder of W&B's files: which row has what, for a start that goes on."""
KEY = "WANDB_API_KEY"
START_SECONDS = 30
FINISH_SECONDS = 30


class WandbConfig(Config):
    wandb_project: str = "reroll"
    """The project that the run is shown in."""
    wandb_team: str | None = None
    """The team or user that the project belongs to; by default that of the key."""
    wandb_group: str | None = None
    """Shows runs of one group together."""
    wandb_run_name: str | None = None
    """The run's name in W&B; by default `run.name`."""
    wandb_mode: Literal["online", "offline", "disabled"] = "online"
    """`offline` writes files alone, for `wandb sync`; `disabled` writes nothing. `online` needs the key in the
    environment, as WANDB_API_KEY, and nothing ever asks for it."""
    wandb_dir: Path | None = None
    """Where W&B's files are; by default in the run's folder, as `<output>/wandb`."""
    wandb_always_use_train_step: bool = True
    """The axis of every metric is `step`, completed optimizer steps. False draws what comes once a collection over
    `rollout/collections` instead, so that collections without a step show as well."""


class WandbTracker(BackgroundTracker):
    """A run in Weights & Biases, whose id is the run's own. One call of `log` is one row, and W&B's own step is the
    number of the row; charts are drawn over `step`. Words are shown in tables of rows, conversations as the table
    `generations` of their step.

    A resumed run goes on in the same W&B run. W&B drops rows that go back, so rows beyond the checkpoint are taken out
    first, through W&B's rewind (`resume_from`), and are logged again as the resumed run makes them; offline, the new
    files say so, and `wandb sync` of both folders, the older one first, comes to the same. A server that knows no
    rewind gets the rows behind the others, and a warning in the log says that those steps are there twice. One that
    cannot be reached within half a minute costs the run no time: W&B's files are written as in `offline`. A start
    that goes on from no checkpoint is a W&B run of its own.
    """

    name = "wandb"
    Config = WandbConfig
    shows_groups = True
    _run: Any = None
    _row: int = 0

    def lacks(self) -> str | None:
        if self.config.wandb_mode == "disabled":
            return None
        if find_spec("wandb") is None:
            return "wandb is not installed: pip install 'reroll[wandb]'"
        if self.config.wandb_mode == "online" and not os.environ.get(KEY):
            return f'{KEY} is not set in the environment: set it, or give wandb_mode = "offline"'
        return None

    def begin(self, context: RunContext) -> None:
        if self.config.wandb_mode == "disabled":
            return
        folder = self.config.wandb_dir or context.output
        files = folder / "wandb"
        files.mkdir(parents=True, exist_ok=True)
        self._rows = context.output / "wandb" / ROWS
        self._rows.parent.mkdir(exist_ok=True)
        kept, moved = keep_lines(self._rows, context)
        last = kept[-1] if kept else None
        self._id = last["id"] if last else context.run_id + (f"-{context.attempt}" if moved else "")
        self._row = last["row"] + 1 if last else 0
        self._run = self._start(context, folder, last, moved)
        self._defined = {"step", COLLECTIONS}
        for axis in sorted(self._defined):
            self._run.define_metric(axis)

    def _start(self, context: RunContext, folder: Path, last: Mapping[str, Any] | None, moved: Sequence[Any]) -> Any:
        """Goes on after the row `last`; rows that were `moved` aside came after it."""
        same = {"id": self._id, "resume": "allow"}
        back = {"resume_from": f"{self._id}?_step={last['row']}"} if last and moved else None
        if self.config.wandb_mode != "online":
            return self._init(context, folder, **(back or same))
        if back:
            try:
                return self._init(context, folder, **back)
            except Exception as error:
                logger.warning("W&B did not rewind the run: %s", error)
        try:
            run = self._init(context, folder, **same)
        except Exception as error:
            logger.warning("W&B cannot be reached, so metrics go to files in %s, for `wandb sync`: %s", folder, error)
            return self._init(context, folder, mode="offline", **(back or same))
        if back:
            logger.warning("steps beyond the checkpoint are in W&B twice")
            self._row = max(line["row"] for line in moved) + 1
        return run

    def _init(self, context: RunContext, folder: Path, mode: Any = None, **identity: Any) -> Any:
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=START_SECONDS,
            x_service_wait=START_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            disable_git=True,
            save_code=False,
        )
        config = self.config
        try:
            return wandb.init(
                project=config.wandb_project,
                entity=config.wandb_team,
                group=config.wandb_group,
                name=config.wandb_run_name or context.name,
                mode=mode or config.wandb_mode,
                dir=str(folder),
                config=tomllib.loads((context.output / RUN_FILE).read_text("utf-8")),
                reinit="create_new",
                settings=settings,
                **identity,
            )
        except Exception:
            wandb.teardown()  # or the id counts as in use
            raise

    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        self._give_axes(metrics)
        self._log(step, metrics, metrics.get(COLLECTIONS))

    def _give_axes(self, names: Iterable[str]) -> None:
        """By whole names: in a pattern of W&B's a star stands for no slash, and of two that fit either may be taken."""
        if self._run is None:
            return
        for name in names:
            if name not in self._defined:
                of_step = self.config.wandb_always_use_train_step or comes_with_steps(name)
                self._run.define_metric(name, step_metric="step" if of_step else COLLECTIONS)
                self._defined.add(name)

    def write_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        if self._run is None:
            return
        import wandb

        table = wandb.Table(columns=list(COLUMNS), data=rows(groups), allow_mixed_types=True)
        self._log(step, {"generations": table}, groups[0]["collection"] + 1)

    def _log(self, step: int, values: Mapping[str, Any], collections: Any) -> None:
        if self._run is None:
            return
        self._run.log({"step": step, **values}, step=self._row)
        line = {"id": self._id, "row": self._row, "step": step}
        if collections is not None:
            line[COLLECTIONS] = collections
        with self._rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._row += 1

    def end(self) -> None:
        if self._run is not None:
            self._run.finish()
