"""`reroll data`: named data sets, made ready once, explicitly, into files that a manifest answers for."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reroll.cli.options import JsonOption

if TYPE_CHECKING:
    from reroll.api import Dataset, Verifier
    from reroll.config.toml import Table
    from reroll.tasks.catalog.manifest import Manifest, ManifestFacts
    from reroll.tasks.catalog.prepare import Package
    from reroll.tasks.catalog.sources import Source

app = typer.Typer(no_args_is_help=True)


class Overlaps(StrEnum):
    remove = "remove"
    refuse = "refuse"


@app.command("list")
def list_() -> None:
    """List the data sets: which package gives each, what judges it, what a source must look like."""
    from reroll.plugins import installed_plugins
    from reroll.plugins.manager import known_distributions

    manager = installed_plugins()
    given = manager.all("datasets")
    for name, provided in given.items():
        cls = provided.cls
        typer.echo(f"{name}  ({provided.distribution} {provided.version})")
        typer.echo(f"    rows: {cls.shapes}")
        typer.echo(f"    prompt: {json.dumps(cls.template, ensure_ascii=False)}")
        options = list(cls.Config.model_fields)
        typer.echo(f"    judged by: {cls.verifier}; options: {', '.join(options)}")
    for name, package in sorted(known_distributions().get("datasets", {}).items()):
        if name not in given:
            typer.echo(f"{name}  (not installed: pip install {package})")


@app.command("show")
def show(
    manifest: Annotated[Path, typer.Argument(help="A manifest.json, or the folder that it is in.", metavar="MANIFEST")],
    verify: Annotated[bool, typer.Option("--verify", help="Digest every file and compare.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show what a prepared data set holds. Exit code 1 where a file is not what the manifest answers for."""
    from reroll.api import TaskError
    from reroll.models.files import sha256_file
    from reroll.tasks.catalog.manifest import FILE, file_fault, read_manifest

    found = read_manifest(manifest / FILE if manifest.is_dir() else manifest)
    if json_:
        typer.echo(json.dumps(found.facts.model_dump(mode="json"), indent=2))
    else:
        typer.echo(_shown(found.facts))
    faults = []
    for name, facts in found.facts.splits.items():
        fault = file_fault(found.file(name), facts)
        if fault is None and verify:
            fault = file_fault(found.file(name), facts, sha256_file(found.file(name)))
        faults += [fault] if fault else []
    if faults:
        raise TaskError("\n".join(faults))
    if verify and not json_:
        typer.echo("  every file is as it was prepared")


@app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(help="The data set, as `reroll data list` names it.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to make.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE_OR_HUB",
            help="A .jsonl, .json or .parquet file, a folder of such files by split, or hub:OWNER/NAME[@REVISION].",
        ),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Of a hub data set: the configuration, such as `main`.")] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="N_OR_SHARE",
            help="Rows, or with a point a share, that become the split `test` of a source with one split.",
        ),
    ] = None,
    overlaps: Annotated[
        Overlaps, typer.Option(help="What to do with prompts that stand in two splits: drop them from `train`, or end.")
    ] = Overlaps.remove,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave rows out that cannot be read, and count them.")
    ] = False,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the data set, with a TOML value.")
    ] = None,
) -> None:
    """Make a data set ready for runs: a file a split, and a manifest with their digests. Nothing is written over."""
    from reroll.api import RerollError, counted
    from reroll.config.secrets import secret_problems
    from reroll.config.toml import parse_option
    from reroll.tasks.catalog.holding_out import held_out_option
    from reroll.tasks.catalog.prepare import prepare as prepare_dataset
    from reroll.tasks.catalog.rows import How

    options = dict(map(parse_option, option or []))
    if faults := list(secret_problems({"--from": from_, "--option": options}, kept_in="a manifest")):
        raise RerollError("\n".join(map(str, faults)))
    dataset, package = _dataset(name, options)
    how = How(
        held_out=None if held_out is None else held_out_option(held_out),
        refuse_overlaps=overlaps is Overlaps.refuse,
        skip_invalid=skip_invalid,
    )
    source = _source(dataset, from_, subset, how.held_out is not None)
    done = prepare_dataset(dataset, package, source, output, how, _judge(dataset))
    for text in done.skipped:
        typer.echo(f"left out: {text}", err=True)
    typer.echo(_shown(done.manifest.facts))
    if not done.anew:
        typer.echo(f"{output}: holds this very data set already; nothing was written")
    listed = counted(len(done.manifest.facts.splits), "split")
    typer.echo(f"{output}: {listed}, {done.manifest.path.name} sha256 {done.manifest.sha256}\n\nIn a run file:\n")
    typer.echo(_run_file_lines(dataset, done.manifest))


def _run_file_lines(dataset: Dataset, manifest: Manifest) -> str:
    """What a run file says to train on the data set, and to evaluate on its split `test`."""
    path = json.dumps(str(manifest.path), ensure_ascii=False)
    lines = f"[data]\nmanifest = {path}\nverifiers = [{json.dumps(dataset.verifier)}]"
    if "test" in manifest.facts.splits:
        lines += f'\n\n[[eval.sets]]\nname = "{dataset.name}-test"\n'
        lines += f'task_set = {{ name = "manifest", path = {path}, split = "test" }}'
    return lines


def _dataset(name: str, options: Table) -> tuple[Dataset, Package]:
    """The data set with its options, and who gives it."""
    from pydantic import ValidationError

    from reroll.api import RerollError
    from reroll.config.problems import from_validation
    from reroll.plugins import installed_plugins
    from reroll.tasks.catalog.prepare import Package

    provided = installed_plugins().get("datasets", name)
    try:
        config = provided.cls.Config.model_validate(options)
    except ValidationError as error:
        told = "\n".join(str(problem) for problem in from_validation(error, name, provided.cls.Config))
        raise RerollError(told) from None
    return provided.cls(config), Package(provided.distribution, provided.version)


def _source(dataset: Dataset, given: str | None, subset: str | None, held_out: bool) -> Source | None:
    from reroll.tasks.catalog.hub import PREFIX, hub_source
    from reroll.tasks.catalog.sources import SourceError, file_source

    if dataset.generated:
        for option, wanted in (("--from", given is not None), ("--held-out", held_out), ("--subset", bool(subset))):
            if wanted:
                raise SourceError(f"{option}: {dataset.name!r} is generated, with a split `test`; leave the option out")
        return None
    if given is None:
        raise SourceError(
            f"--from: {dataset.name!r} has to be made from something, with rows such as: {dataset.shapes}"
        )
    if given.startswith(PREFIX):
        return hub_source(given.removeprefix(PREFIX), subset)
    if subset is not None:
        raise SourceError(f"--subset {subset}: does nothing for files; leave it out, or give --from hub:OWNER/NAME")
    return file_source(Path(given))


def _judge(dataset: Dataset) -> Verifier | None:
    """The verifier, for a look at targets; None where it is not installed here, or needs options of a run."""
    from pydantic import ValidationError

    from reroll.api import PluginError
    from reroll.plugins import installed_plugins

    try:
        cls = installed_plugins().get("verifiers", dataset.verifier).cls
        made: Verifier = cls(cls.Config())
    except (PluginError, ValidationError):
        return None
    return made


def _shown(facts: ManifestFacts) -> str:
    """A manifest for people."""
    said = [
        f"{facts.name}, judged by {facts.verifier}; prompt: {json.dumps(facts.prompt.template, ensure_ascii=False)}"
    ]
    for name, split in facts.splits.items():
        said.append(f"  {name}: {split.rows:,} rows, {split.bytes:,} bytes, {split.file}")
        notes = {**split.left_out, **{f"duplicates, {kind}": count for kind, count in split.duplicates.items()}}
        said += [f"    left out, {reason}: {count:,}" for reason, count in notes.items()]
        if split.given_prompts:
            said.append(f"    prompts as the source gives them, without the template: {split.given_prompts:,}")
    said += [
        f"  dropped, since both splits ask it: {count:,} rows of {which}" for which, count in facts.overlaps.items()
    ]
    return "\n".join(said)
