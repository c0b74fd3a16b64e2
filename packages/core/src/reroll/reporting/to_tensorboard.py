"""TensorBoard: event files, written by tensorboardX, which needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from reroll.api import RunContext, Tracker
from reroll.reporting.generations import COLUMNS, rows

FOLDER = "tensorboard"


class TensorBoardTracker(Tracker):
    """Event files under `<output>/tensorboard`: `tensorboard --logdir <output>`. The axis is completed optimizer steps,
    values are float32, words such as `train/scoring_pass` are under Text, and so are conversations.

    A resumed run writes a file of its own and says in it that what earlier files have of later steps counts no more:
    TensorBoard drops those points. It drops no text, which stands there twice then, and no points of a collection
    without a step that came after the checkpoint.
    """

    name = "tensorboard"
    shows_groups = True
    _writer: Any = None

    def lacks(self) -> str | None:
        if find_spec("tensorboardX") is None:
            return "tensorboardX is not installed: pip install 'reroll[tensorboard]'"
        return None

    def open(self, context: RunContext) -> None:
        from tensorboardX import SummaryWriter

        folder = context.output / FOLDER
        again = folder.is_dir() and any(folder.iterdir())
        first = 0 if context.fresh else context.start_version + 1
        self._writer = SummaryWriter(str(folder), purge_step=first if again else None, flush_secs=10)

    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        for name, value in metrics.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step)

    def log_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
        lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows(groups)]
        self._writer.add_text("generations", "\n".join(lines), step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", "<br>")
