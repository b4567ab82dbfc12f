"""A stand-in for SLURM on one machine: sbatch, srun and scontrol, which start real processes with SLURM's variables.

``install`` puts the three commands into a folder for the PATH; each is this file under another name. Unlike SLURM's,
this sbatch returns when the job has ended and has not been requeued. The folder ``$SLURM_STANDIN`` holds ``tasks``, the
ids of the processes of the running step, ``requeue`` once the job is to be run again, and ``runs``, a line for every
time that the script was started.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

NAMES = ("sbatch", "srun", "scontrol")


def install(folder: Path) -> None:
    """Write the commands into a folder."""
    folder.mkdir()
    for name in NAMES:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {name} "$@"\n')
        path.chmod(0o755)


def sbatch(*words: str) -> int:
    """Run a script as a job of its options, and again as often as it is requeued; return its last exit code."""
    script, *rest = words
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", Path(script).read_text(), re.MULTILINE))
    nodes, tasks = int(options.get("nodes", 1)), int(options["ntasks-per-node"])
    state = Path(os.environ["SLURM_STANDIN"])
    environment = os.environ | {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "lovec",
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(nodes * tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NODELIST": ",".join(["127.0.0.1"] * nodes),
    }
    for count in range(10):
        with (state / "runs").open("a") as runs:
            runs.write(f"{count}\n")
        code = subprocess.run(["bash", script, *rest], env=environment | {"SLURM_RESTART_COUNT": str(count)}).returncode
        if not (state / "requeue").exists():
            return code
        (state / "requeue").unlink()
    return 1


def srun(*words: str) -> int:
    """Run a command once per task; return the highest exit code, as srun does."""
    command = list(words)
    while command[0].startswith("-"):
        command.pop(0)
    number, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_NNODES"])
    tasks = []
    for rank in range(number):
        node, local = divmod(rank, number // nodes)
        ids = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
        tasks.append(subprocess.Popen(command, env=os.environ | ids))
    file = Path(os.environ["SLURM_STANDIN"], "tasks")
    file.with_suffix(".new").write_text(" ".join(str(task.pid) for task in tasks))
    file.with_suffix(".new").rename(file)
    codes = [task.wait() for task in tasks]
    file.unlink()
    return max(128 - code if code < 0 else code for code in codes)


def scontrol(*words: str) -> int:
    """Note that the job is to be run again."""
    assert words == ("requeue", os.environ["SLURM_JOB_ID"]), words
    Path(os.environ["SLURM_STANDIN"], "requeue").touch()
    return 0


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](*sys.argv[2:]))
