"""A small image of this machine's own programs, so that containers need nothing from the network."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

SHELL = ["bash", "sh", "env", "false", "test", "true", "sleep", "id", "whoami", "uname", "date"]
FILES = ["cat", "chmod", "cp", "dirname", "find", "head", "ls", "mkdir", "mv", "rm", "rmdir", "stat", "tail", "touch"]
ARCHIVES = ["gzip", "tar", "tee"]
DOCKERFILE = 'FROM scratch\nADD root.tar /\nENV PATH=/bin\nWORKDIR /app\nCMD ["bash"]\n'
ACCOUNTS = "root:x:0:0:root:/root:/bin/bash\n"
LIBRARY = re.compile(r"(/\S+\.so\S*)")


def write_build(folder):
    """A folder that `build` makes an image of."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "passwd").write_text(ACCOUNTS)
    with tarfile.open(folder / "root.tar", "w") as archive:
        for name in ("app", "tmp", "root", "bin", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(entry)
        archive.add(folder / "passwd", "etc/passwd")
        libraries = set()
        for name in (*SHELL, *FILES, *ARCHIVES):
            program = shutil.which(name)
            assert program is not None, f"this machine has no {name}"
            program = str(Path(program).resolve())
            archive.add(program, f"bin/{name}")
            listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
            libraries |= set(LIBRARY.findall(listed))
        for library in sorted(libraries):
            archive.add(str(Path(library).resolve()), library.lstrip("/"))
    (folder / "passwd").unlink()
    return folder
