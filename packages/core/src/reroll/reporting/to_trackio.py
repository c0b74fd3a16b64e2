"""trackio, which keeps metrics in a file of its own beside the run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reroll.api import Config, RerollError, RunContext
from reroll.reporting.background import BackgroundTracker
from reroll.reporting.generations import COLUMNS, rows
from reroll.reporting.kept import COLLECTIONS, belongs

logger = logging.getLogger("reroll")
VARIABLE = "TRACKIO_DIR"


class TrackioConfig(Config):
    trackio_project: str = "reroll"
    """The project that the run is shown in."""
    trackio_run_name: str | None = None
    """The run's name in trackio; by default `run.name` and the first letters of the run's id."""
    trackio_dir: Path | None = None
    """Where trackio's files are; by default `<output>/trackio`. One folder for several runs shows them together:
    `TRACKIO_DIR=<folder> trackio show`."""


class TrackioTracker(BackgroundTracker):
    """A run in trackio's store on this machine. The axis is completed optimizer steps; words are kept with the numbers,
    conversations as the table `generations`. A resumed run goes on in the same one, after the rows beyond its
    checkpoint were deleted from the store.

    Nothing is sent anywhere, unless the environment names a server for trackio, which then gets those rows twice.
    """

    name = "trackio"
    Config = TrackioConfig
    shows_groups = True
    _run: Any = None

    def lacks(self) -> str | None:
        if find_spec("trackio") is None:
            return "trackio is not installed: pip install 'reroll[trackio]'"
        return None

    def begin(self, context: RunContext) -> None:
        folder = (self.config.trackio_dir or context.output / "trackio").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[VARIABLE] = str(folder)
        import trackio
        import trackio.run
        import trackio.utils
        from trackio.sqlite_storage import SQLiteStorage

        for module in (trackio, trackio.run, trackio.utils):  # it prints, on the output that is the run's own
            vars(module)["print"] = lambda *said, **options: logger.info("%s", " ".join(map(str, said)))
        store = Path(SQLiteStorage.get_project_db_path(self.config.trackio_project))
        if folder not in store.absolute().parents:
            raise RerollError(f"trackio was imported before and writes to {store.parent}, not to {folder}")
        name = self.config.trackio_run_name or f"{context.name}-{context.run_id[:8]}"
        _delete_beyond(store, name, context)
        self._run = trackio.init(
            project=self.config.trackio_project,
            name=name,
            config=context.to_json(),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        self._run.log(dict(metrics), step=step)

    def write_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        import trackio

        table = trackio.Table(columns=list(COLUMNS), data=rows(groups))
        self._run.log({"generations": table, COLLECTIONS: groups[0]["collection"] + 1}, step=step)

    def end(self) -> None:
        self._run.finish()


def _delete_beyond(store: Path, name: str, context: RunContext) -> None:
    """Rows of an earlier start of the run beyond the checkpoint that this one goes on from."""
    import sqlite3  # a shared library, which whoever only plans a run does not need

    if not store.exists():
        return
    connection = sqlite3.connect(store, timeout=10)
    try:
        found = connection.execute("SELECT id, step, metrics FROM metrics WHERE run_name = ?", [name]).fetchall()
        later = [(row,) for row, step, metrics in found if not belongs(step, json.loads(metrics), context)]
        connection.executemany("DELETE FROM metrics WHERE id = ?", later)
        connection.commit()
    finally:
        connection.close()
