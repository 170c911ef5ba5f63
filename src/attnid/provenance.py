"""What a result was made with: versions, device, threads, commit."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGES = ("attnid", "torch", "numpy", "scipy", "pandas", "pyarrow", "matplotlib", "seaborn", "snakemake", "pydantic")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers and figures depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def digest(files: Iterable[str | Path]) -> str:
    """A hash of what these files hold, in this order."""
    together = hashlib.sha256()
    for file in files:
        together.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return together.hexdigest()


def code(shared: Iterable[str | Path], own: Iterable[str | Path]) -> str:
    """What names the code of a training job: hashes of the files that all jobs share, and of those of its optimiser."""
    return f"{digest(shared)}+{digest(own)}"


def shared_code(code: str) -> str:
    """The part of a training job's code that all jobs share."""
    return code.partition("+")[0]


def commit() -> str:
    """The commit of the checkout the package runs from, marked where files differ from it; "unknown" outside one."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with local changes" if changed else head


def machine() -> str:
    """Operating system, processor architecture and number of cores."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def _git(where: Path, *arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, check=True)
    return result.stdout.strip()
