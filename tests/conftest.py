"""The run file that most tests start from."""

import os
from pathlib import Path

import pytest
from driving import RUN

HERE = Path(__file__).parent


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """Writes a run file and gives its path; workers can import this folder's modules."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(HERE))

    def write(text=RUN, name="run.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
