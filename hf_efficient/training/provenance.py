"""What results say about where they came from: the commit of the code, the memory that the process took."""

import subprocess
from functools import cache
from pathlib import Path

import hf_efficient

PACKAGE = Path(hf_efficient.__file__).parent


@cache  # the code that runs is that of its first import, whatever is checked out later
def code_version() -> str:
    """The commit of the checkout that the package is part of, "-dirty" if it was changed; else "v" and the version."""
    found = commit(PACKAGE) if is_tracked(PACKAGE / "__init__.py") else None
    return found or f"v{hf_efficient.__version__}"


def commit(folder: Path) -> str | None:
    """The commit checked out, "-dirty" if the tree differs from it; None if this is no clone."""
    return git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def is_tracked(file: Path) -> bool:
    """Whether a repository has this file: a package may be installed in somebody else's."""
    return git(file.parent, "ls-files", "--error-unmatch", file.name) is not None


def git(folder: Path, *words: str) -> str | None:
    """What it prints, or None if it failed or is not there."""
    try:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def peak_memory() -> int | None:
    """The most bytes of this process that were ever in memory at once, imports and data included.

    Not `ru_maxrss`, which a child inherits from its parent; None where the system does not say.
    """
    return resident("VmHWM")


def resident(field: str) -> int | None:
    """Bytes, by a field of /proc/self/status: VmRSS now, VmHWM at the peak."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)
