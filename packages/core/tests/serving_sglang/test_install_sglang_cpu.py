"""The script that makes SGLang's environment: what it keeps, what it makes anew, what it leaves alone."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[2] / "tools"


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script():
    return loaded(TOOLS / "install_sglang_cpu.py")


@pytest.fixture
def environment(tmp_path, script):
    """What the script leaves behind, without what it installs."""
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").touch()
    (folder / script.MARKER).write_text(script.digest())
    return folder


def test_a_whole_environment_is_kept(script, environment):
    command = [sys.executable, str(TOOLS / "install_sglang_cpu.py"), str(environment)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{environment} is whole\n"


def test_a_broken_or_outdated_one_is_not_taken_for_whole(script, environment, tmp_path, monkeypatch):
    assert script.is_whole(environment)
    assert not script.is_whole(tmp_path / "elsewhere")
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "changed.py").touch()
    with monkeypatch.context() as patched:
        patched.setattr(script, "SHIM", shim)
        assert not script.is_whole(environment)
    (environment / "bin/python").unlink()
    os.symlink("/nowhere/python", environment / "bin/python")
    assert not script.is_whole(environment)


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    command = [sys.executable, str(TOOLS / "install_sglang_cpu.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no environment" in done.stderr
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_the_kernel_in_torch_is_what_a_loop_over_requests_does():
    kernel = loaded(TOOLS / "sglang_cpu_shim/sgl_kernel/__init__.py")
    rows, starts, ends = torch.tensor([4, 0, 2]), torch.tensor([1, 0, 3]), torch.tensor([3, 0, 7])
    slots = torch.arange(100, 106)
    table = torch.zeros(5, 8, dtype=torch.int32)
    expected, taken = table.clone(), 0
    for row, start, end in zip(rows, starts, ends, strict=True):
        expected[row, start:end] = slots[taken : taken + end - start].int()
        taken += end - start
    kernel.assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, 8)
    assert torch.equal(table, expected) and taken == 6
    with pytest.raises(NotImplementedError, match="some_kernel"):
        kernel.some_kernel(1)


def test_the_stand_in_for_torchvision_is_imported_and_not_called():
    code = (
        "import torchvision.transforms.functional as functional; from torchvision.transforms import InterpolationMode\n"
        "mode = InterpolationMode.BICUBIC\n"
        "try: functional.resize(1)\nexcept NotImplementedError as error: print(error)"
    )
    shim = {**os.environ, "PYTHONPATH": str(TOOLS / "sglang_cpu_shim")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=shim, check=True)
    assert done.stdout.startswith("torchvision.transforms.functional.resize")
