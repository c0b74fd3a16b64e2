"""Makes an environment in which SGLang 0.5.23 serves text models on any x86 CPU.

    python install_sglang_cpu.py FOLDER

About three minutes and 3.5 GB. A whole environment is kept as it is, so that FOLDER can be a cache of continuous
integration; one that is half made, or was made from another version of this script, is made anew. pip takes torch
from where its settings say: `PIP_EXTRA_INDEX_URL` may name an index with torch's CPU builds.

SGLang's published dependencies want a GPU: kernels, collectives, codecs. A text model served with
`--device cpu --attention-backend torch_native` uses none of them, apart from one small kernel, which `sglang_cpu_shim`
gives in plain torch. Everything else that SGLang's own metadata asks for is installed as it asks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory

SGLANG = "sglang==0.5.23"
ROUTER = "sglang-router==0.3.2"
"""SGLang's own router, a package apart, which depends on nothing that SGLang does not."""
SHIM = Path(__file__).with_name("sglang_cpu_shim")
MARKER = "reroll-sglang-cpu.sha256"

INSTEAD = {"torch": "torch==2.13.0"}
"""The release that this repository's other environments have, which has a CPU build."""

GPU_ONLY = {
    *("apache-tvm-ffi", "cuda-python", "flash-attn-4", "flashinfer-python", "humming-kernels", "nvidia-cutlass-dsl"),
    *("nvidia-mathdx", "nvidia-ml-py", "nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep", "sgl-deep-gemm"),
    *("sgl-flash-mla", "sglang-kernel", "tilelang", "torch-memory-saver"),
}
MEDIA = {"av", "decord2", "timm", "torchaudio", "torchcodec", "torchvision"}
UNUSED = {"deepseek-recipe", "python-dateutil", "smg-grpc-servicer", "tml-renderers"}
LEFT_OUT = GPU_ONLY | MEDIA | UNUSED

WITHOUT_DEPENDENCIES = ["timm==1.0.25"]
"""Imported at start-up; what it depends on is torchvision, of which the shim has what an import needs."""


def digest() -> str:
    """Of everything that decides what is installed."""
    files = [Path(__file__), *sorted(SHIM.rglob("*.py"))]
    found = hashlib.sha256(str(sys.version_info[:2]).encode())
    for path in files:
        found.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def is_whole(folder: Path) -> bool:
    marker = folder / MARKER
    return (folder / "bin/python").exists() and marker.exists() and marker.read_text() == digest()


def make(folder: Path) -> None:
    """Replaces what is in `folder`; the marker is written once everything is there."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        sys.exit(f"{folder} holds something that is no environment: give a folder of its own")
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    python = str(folder / "bin/python")
    pip(python, "install", "--upgrade", "pip")
    with TemporaryDirectory() as downloads:
        pip(python, "download", "--no-deps", "--dest", downloads, SGLANG)
        (wheel,) = Path(downloads).glob("*.whl")
        pip(python, "install", *requirements(wheel), ROUTER)
        pip(python, "install", "--no-deps", str(wheel), *WITHOUT_DEPENDENCIES)
    packages = output(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    shutil.copytree(SHIM, packages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    output(python, "import sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler")
    (folder / MARKER).write_text(digest())


def requirements(wheel: Path) -> Iterator[str]:
    """What SGLang asks for, without what only a GPU can use."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(files.read(name))
    for wanted in metadata.get_all("Requires-Dist", []):
        name = re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", wanted)[0]).lower()
        if "extra ==" not in wanted and name not in LEFT_OUT:
            yield INSTEAD.get(name, wanted)


def pip(python: str, command: str, *arguments: str) -> None:
    run([python, "-I", "-m", "pip", command, "--quiet", "--no-input", *arguments])


def output(python: str, code: str) -> str:
    """What a program prints in the environment, on a machine without a GPU."""
    done = run(
        [python, "-I", "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        SGLANG_USE_CPU_ENGINE="1",
        OMP_NUM_THREADS="1",
    )
    return done.stdout.strip()


def run(command: list[str], stdout: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    # Constraints of the environment that runs this are for other packages than SGLang's.
    inherited = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(command, env=inherited | environment, stdout=stdout, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return done


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lets a second installation into one folder wait for the first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1]).absolute()
    with alone(folder):
        if is_whole(folder):
            print(f"{folder} is whole")
            return
        print(f"making {folder}: {SGLANG} for CPUs, about three minutes", flush=True)
        make(folder)
        print(f"{folder} is made")


if __name__ == "__main__":
    main()
