"""`reroll records …`. Importing it does no work."""

from __future__ import annotations

import typer

from reroll_records.checking.command import check
from reroll_records.compaction.command import compact
from reroll_records.export.command import export
from reroll_records.inspection.command import inspect
from reroll_records.selection.command import select
from reroll_records.summary.command import summarize

app = typer.Typer(
    help="Inference records: what became of every scored group of recorded runs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("summarize")(summarize)
app.command("select")(select)
app.command("inspect")(inspect)
app.command("compact")(compact)
app.command("export")(export)
app.command("check")(check)
