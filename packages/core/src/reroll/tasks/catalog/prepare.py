"""Preparing a data set: a source's rows become files of tasks, and a manifest that answers for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from reroll.api import Dataset, PluginError, Verifier
from reroll.config.atomic import write_whole
from reroll.models.files import sha256_file
from reroll.tasks.catalog.holding_out import DIGITS, STAGED, bound
from reroll.tasks.catalog.manifest import (
    FILE,
    Manifest,
    ManifestFacts,
    PromptFacts,
    file_fault,
    manifest_text,
    read_manifest,
)
from reroll.tasks.catalog.prompts import template_of
from reroll.tasks.catalog.rows import How, Rows
from reroll.tasks.catalog.seen import SeenPrompts
from reroll.tasks.catalog.sources import Part, RowsPart, Source, SourceError
from reroll.tasks.catalog.writing import READ_ONLY, SplitWriter, publish, staging


class Package(NamedTuple):
    """Who gives the data set."""

    name: str
    version: str


class Prepared(NamedTuple):
    """What came of it.

    Attributes:
        anew: False where the folder held the very same data set already.
        skipped: the first rows that could not be read and were left out.
    """

    manifest: Manifest
    anew: bool
    skipped: list[str]


def prepare(
    dataset: Dataset, package: Package, source: Source | None, output: Path, how: How, judge: Verifier | None = None
) -> Prepared:
    """Writes `output`, which is there whole or not at all.

    Args:
        source: None for a data set that is generated.
        judge: is asked whether answers can be judged by the targets; None leaves that out.

    Raises:
        SourceError: nothing can be made of the source, or `output` holds something else.
        TaskError: rows cannot be read; names the first of them.
    """
    template = template_of(dataset)
    parts = _generated(dataset) if source is None else _ordered(source.parts, how)
    _check_free(output)
    with SeenPrompts() as seen, staging(output) as folder:
        rows = Rows(dataset, template, judge, how, seen)
        splits, read = _written(rows, parts, folder)
        rows.refuse()
        if STAGED in splits:
            assert how.held_out is not None
            splits = _divided(folder, splits[STAGED], how.held_out)
        _refuse_empty(splits)
        made_of = {"kind": "generated"} if source is None else source.facts
        facts = _facts(rows, package, {**made_of, "files": [part.facts() for part in read]}, splits)
        write_whole(folder / FILE, manifest_text(facts))
        (folder / FILE).chmod(READ_ONLY)
        manifest = read_manifest(folder / FILE)
        held = held_manifest(output)
        if held is None:
            publish(folder, output)
        else:
            _refuse_other(output, held, manifest)
    return Prepared(read_manifest(output / FILE), held is None, rows.told)


def _written(
    rows: Rows, parts: Iterable[tuple[str, list[Part]]], folder: Path
) -> tuple[dict[str, SplitWriter], list[Part]]:
    """Every split's file in the folder, and the parts that were read."""
    splits: dict[str, SplitWriter] = {}
    read: list[Part] = []
    for split, given in parts:
        if split in splits:
            raise PluginError(f"data set {rows.dataset.name!r} generates the split {split!r} in two pieces")
        read += given
        with SplitWriter(folder, split) as writer:
            for part in given:
                rows.write(part, writer, split)
        splits[split] = writer
    return splits, read


def _facts(rows: Rows, package: Package, source: dict[str, Any], splits: dict[str, SplitWriter]) -> ManifestFacts:
    dataset = rows.dataset
    digest = hashlib.sha256(rows.template.encode()).hexdigest()
    return ManifestFacts(
        name=dataset.name,
        versions={"reroll": version("reroll"), package.name: package.version},
        source=source,
        options=dataset.config.model_dump(mode="json"),
        preparation=rows.how.facts(),
        prompt=PromptFacts(template=rows.template, sha256=digest, system=dataset.config.system),
        verifier=dataset.verifier,
        splits={name: writer.facts() for name, writer in sorted(splits.items(), key=_train_first)},
        overlaps=dict(sorted(rows.overlaps.items())),
    )


def held_manifest(output: Path) -> Manifest | None:
    """The manifest of the data set that lies there already, if one does."""
    return read_manifest(output / FILE) if (output / FILE).exists() else None


def _check_free(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise SourceError(f"--output {output}: is a file; give a folder")
    if Path.cwd().is_relative_to(output.resolve()):
        raise SourceError(f"--output {output}: holds the working directory; the folder is made anew, so give another")
    if output.is_dir() and any(output.iterdir()) and held_manifest(output) is None:
        raise SourceError(f"--output {output}: holds other files, and no {FILE}; give another folder")


def _refuse_other(output: Path, held: Manifest, found: Manifest) -> None:
    """The folder holds the same data set, or it is left alone."""
    if held.sha256 != found.sha256:
        before, after = held.facts.model_dump(mode="json"), found.facts.model_dump(mode="json")
        differing = ", ".join(key for key in before if before[key] != after[key])
        raise SourceError(
            f"--output {output}: holds a data set that was prepared in another way or from something else ({differing} "
            "differ), and none is written over; give another folder"
        )
    for name, facts in held.facts.splits.items():
        path = held.file(name)
        if fault := file_fault(path, facts) or file_fault(path, facts, sha256_file(path)):
            raise SourceError(fault)


def _generated(dataset: Dataset) -> Iterator[tuple[str, list[Part]]]:
    for split, rows in groupby(dataset.generate(), key=itemgetter(0)):
        yield split, [RowsPart(split, split, (raw for _, raw in rows))]


def _ordered(parts: list[Part], how: How) -> list[tuple[str, list[Part]]]:
    """Parts by split. What answers are measured on comes first, so that the split that is trained on is the one that
    loses rows which stand in both."""
    by_split: dict[str, list[Part]] = {}
    for part in parts:
        by_split.setdefault(part.split, []).append(part)
    if how.held_out is None:
        return sorted(by_split.items(), key=_train_last)
    if len(by_split) > 1:
        raise SourceError(
            f"--held-out {how.held_out}: the source has splits of its own ({', '.join(sorted(by_split))}); leave the "
            "option out"
        )
    return [(STAGED, parts)]


def _train_last(item: tuple[str, Any]) -> tuple[bool, bool, str]:
    return item[0] == "train", item[0] != "test", item[0]


def _train_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] != "train", item[0]


def _refuse_empty(splits: dict[str, SplitWriter]) -> None:
    for name, writer in splits.items():
        if not writer.rows:
            why = ", ".join(f"{reason}: {count:,}" for reason, count in writer.left_out.items())
            raise SourceError(f"the split {name!r} is left without rows{f' ({why})' if why else ''}")
    if not splits:
        raise SourceError("the source holds no split, and so no rows")


def _divided(folder: Path, staged: SplitWriter, held_out: int | float) -> dict[str, SplitWriter]:
    """The staged rows as `train` and `test`. What was left out of them is told with `train`."""
    limit = bound((line[:DIGITS].decode() for line in _lines(staged.path)), held_out, staged.rows)
    with SplitWriter(folder, "train") as train, SplitWriter(folder, "test") as test:
        for line in _lines(staged.path):
            writer = test if line[:DIGITS].decode() < limit else train
            writer.write(line[DIGITS + 1 :])
            writer.given_prompts += line[DIGITS : DIGITS + 1] == b"+"
    train.left_out, train.duplicates = staged.left_out, staged.duplicates
    staged.path.unlink()
    return {"train": train, "test": test}


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file
