"""Data sets of the Hugging Face hub as sources, through `datasets`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from reroll.tasks.catalog.sources import Part, RowsPart, Source, SourceError, split_named

PREFIX = "hub:"
_NAME = re.compile(r"^(?P<repository>[\w.-]+/[\w.-]+|[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
EXTRA = "needs `datasets`: pip install 'reroll[hub]'"
OFFLINE = (
    "without a network, download it elsewhere and give the folder of its files: --from FOLDER (JSON lines, JSON or "
    "Parquet)"
)


def hub_source(given: str, subset: str | None) -> Source:
    """`OWNER/NAME[@REVISION]`, as it is at one commit; SourceError says what to do where it cannot be had."""
    found = _NAME.match(given)
    if found is None:
        raise SourceError(f"--from {PREFIX}{given}: is no OWNER/NAME or OWNER/NAME@REVISION")
    repository, revision = found["repository"], found["revision"]
    commit = revision if revision and _COMMIT.match(revision) else _commit(repository, revision)
    parts = stream(repository, commit, subset)
    return Source(parts, {"kind": "hub", "repository": repository, "revision": commit, "subset": subset})


def _commit(repository: str, revision: str | None) -> str:
    """What the revision stands for now: a branch moves on, and a manifest says what was taken."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise SourceError(f"--from {PREFIX}{repository} {EXTRA}") from None
    try:
        sha = HfApi().dataset_info(repository, revision=revision).sha
    except Exception as error:  # of the network, the hub, the client
        raise SourceError(_unreachable(repository, error)) from None
    if sha is None:
        raise SourceError(f"--from {PREFIX}{repository}: the hub names no commit of it; give @REVISION in 40 digits")
    return sha


def stream(repository: str, revision: str | None, subset: str | None) -> list[Part]:
    """Every split that `datasets` finds in a repository of the hub or in a local folder, read in a stream."""
    try:
        import datasets
    except ImportError:
        raise SourceError(f"--from {PREFIX}{repository} {EXTRA}") from None
    try:
        found: Any = datasets.load_dataset(repository, name=subset, revision=revision, streaming=True)
    except ValueError as error:
        raise SourceError(
            f"--from {PREFIX}{repository}: {str(error).splitlines()[0]}; --subset gives the name of a configuration"
        ) from None
    except Exception as error:  # of the network, the hub, the client
        raise SourceError(_unreachable(repository, error)) from None
    return [
        RowsPart(str(name), split_named(str(name)), _whole(repository, rows)) for name, rows in sorted(found.items())
    ]


def _whole(repository: str, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every row, or a SourceError where the stream ends before its end."""
    try:
        yield from rows
    except Exception as error:  # of the network, the hub, the client
        raise SourceError(_unreachable(repository, error)) from None


def _unreachable(repository: str, error: Exception) -> str:
    said = str(error).splitlines()[0] if str(error) else ""
    return f"--from {PREFIX}{repository}: cannot be had: {type(error).__name__}: {said:.200}; {OFFLINE}"
