"""Exported records as the libraries that read them see them: what is not in the records' own environment."""

import os
import subprocess
import sys

import huggingface_hub
import pyarrow
import pytest
from pyarrow import parquet
from written_store import odd_store

from reroll_records.api import open_store
from reroll_records.export.dataset import Choice, write_dataset


@pytest.fixture
def store(tmp_path):
    return odd_store(tmp_path / "store")


@pytest.mark.parametrize("kind", ["responses", "groups"])
def test_the_folder_has_the_form_that_is_documented_for_data_sets(store, tmp_path, kind):
    """https://huggingface.co/docs/datasets/repository_structure: the card's YAML names the split's files and features.
    The card is read with huggingface_hub's own parser, and the files with pyarrow."""
    write_dataset(open_store(store), tmp_path / "set", Choice(kind))
    card = huggingface_hub.DatasetCard.load(tmp_path / "set" / "README.md").data.to_dict()
    (config,) = card["configs"]
    assert config == {"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}
    (file,) = (tmp_path / "set").glob(config["data_files"][0]["path"])
    table = parquet.read_table(file)
    assert [feature["name"] for feature in card["dataset_info"]["features"]] == table.column_names
    codecs = {parquet.ParquetFile(file).metadata.row_group(0).column(i).compression for i in range(5)}
    assert codecs == {"ZSTD"}


@pytest.mark.parametrize("kind", ["responses", "groups"])
def test_the_datasets_library_reads_the_folder(store, tmp_path, kind):
    """In a process of its own, with a cache of its own."""
    write_dataset(open_store(store), tmp_path / "set", Choice(kind), shard_bytes=2000)
    code = (
        "import sys, datasets\n"
        "found = datasets.load_dataset(sys.argv[1], split='train', cache_dir=sys.argv[2])\n"
        "assert datasets.Features.from_arrow_schema(found.data.schema) == found.features\n"
        "found.to_parquet(sys.argv[3])"
    )
    again = tmp_path / "again.parquet"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "set"), str(tmp_path / "cache"), str(again)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "set" / "data").iterdir())
    given = pyarrow.concat_tables(parquet.read_table(file) for file in files)
    assert parquet.read_table(again).to_pylist() == given.to_pylist()
