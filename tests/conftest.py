"""The run file that most tests start from."""

import os
import subprocess
import sys
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


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Builds the wheel of a folder, once however many tests install it, and gives its path."""
    built = {}

    def build(source):
        if source not in built:
            folder = tmp_path_factory.mktemp("wheel")
            pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder)]
            subprocess.run([*pip, str(source)], check=True)
            (built[source],) = folder.glob("*.whl")
        return str(built[source])

    return build


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Makes an environment in which pip has installed what is given, and gives its folder. What is imported from it
    is compiled then, and not, as pip would, all that is installed."""

    def make(*arguments):
        folder = tmp_path_factory.mktemp("environment") / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "--no-compile"]
        subprocess.run([*pip, *arguments], check=True)
        return folder

    return make
