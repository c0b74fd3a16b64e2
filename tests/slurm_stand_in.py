"""Commands of a Slurm that has one machine, this one: what `reroll run` asks of the real ones, and no more."""

import os
import stat
import sys

SBATCH = """
import os, subprocess, sys
from pathlib import Path
folder = Path(__file__).parent
*options, script = sys.argv[1:]
assert options == ["--parsable"], options
text = Path(script).read_text()
given = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if line[:7] == "#SBATCH")
if given.get("partition") == "closed":
    sys.exit("sbatch: error: invalid partition specified: closed")
number = 1 + len(list(folder.glob("job-*")))
log = open(given["output"].replace("%j", str(number)), "ab")
if given.get("partition") == "full":
    pid = 0
else:
    pid = subprocess.Popen(["bash", script], start_new_session=True, stdout=log, stderr=log).pid
(folder / f"job-{number}").write_text(str(pid))
print(f"{number};")
"""
SQUEUE = """
import sys
from pathlib import Path
number = sys.argv[sys.argv.index("--jobs") + 1]
job = Path(__file__).parent / f"job-{number}"
pid = int(job.read_text()) if job.exists() else None
def alive():
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
if pid == 0:
    print("PENDING||Resources")
elif pid and alive():
    print("RUNNING|node1|None")
else:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
"""
SCANCEL = """
import os, signal, sys
from pathlib import Path
job = Path(__file__).parent / f"job-{sys.argv[-1]}"
pid = int(job.read_text())
if pid:
    os.killpg(pid, signal.SIGKILL)
job.write_text("-1")
"""


def stand_in(folder, monkeypatch):
    """Puts the commands into the folder and first into PATH."""
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), os.environ["PATH"]]))
