"""What a repository holds: which files of a folder are shared, what must not be among them, what is intact."""

import fnmatch
import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub.hf_api import RepoFile

from ..models.checkpoint_paths import check_folder, leaves_folder
from .client import HubError, known_tokens

# Patterns of what stays at home, as seen from the folder; `*` includes slashes.
LEFT_OUT = (
    ".git/*",
    ".cache/*",
    "*/.cache/*",
    "__pycache__/*",
    "*/__pycache__/*",
    "checkpoint-*/*",
    "_*",  # a run's own files
    ".env",
    "*.tmp*",
    "*.lock",
    # Pickles, which are not safe to load elsewhere; training_args.bin may hold a token, too.
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
)
WEIGHTS = (
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin*",
)
TOKEN = re.compile(rb"(?<![A-Za-z0-9_])(?:hf|api_org)_[A-Za-z0-9]{34}(?![A-Za-z0-9])")  # of anybody
CHUNK = 2**20
OVERLAP = 4096  # of what is searched at a time; longer than any token


def list_files(folder: Path, left_out: Iterable[str] = LEFT_OUT) -> dict[str, Path]:
    """The files to share, by their names in the repository. Links that lead out of the folder are not among them."""
    if not folder.is_dir():
        raise HubError(f"there is no folder {folder}.")
    names = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name: path for name, path in names.items() if not matches(name, left_out)}
    if strays := [name for name, path in files.items() if not _is_inside(path, folder)]:
        where = f"{strays[0]} -> {files[strays[0]].resolve()}"
        warnings.warn(f"links that lead out of {folder} are not shared: {where}. Copy what is meant.", stacklevel=2)
        files = {name: path for name, path in files.items() if name not in strays}
    if not files:
        raise HubError(f"{folder} holds nothing to share.")
    if odd := [name for name in files if "\\" in name or not name.isprintable()]:
        raise HubError(f"{odd[0]!r}: a file name with backslashes or control characters is not the same everywhere.")
    return files


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a file lies in its folder, or, of a snapshot in the Hub's cache, among the files of its repository."""
    home = folder.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return any(path.resolve().is_relative_to(place) for place in (home, blobs))


def refuse_token(files: Mapping[str, Path], token: str | None = None, allow_tokens: bool = False) -> None:
    """Raises for a file that holds a token of this machine, or, unless that is allowed, what looks like anybody's."""
    secrets = [re.compile(re.escape(secret.encode())) for secret in known_tokens(token)]
    for name, path in files.items():
        if _holds(path, secrets):
            raise HubError(
                f"{name} holds your token, so nothing has been sent. Remove it there, and make a new token."
            )
        if not allow_tokens and (found := _holds(path, [TOKEN])):
            raise HubError(
                f"{name} holds what looks like somebody's token ({found[:6].decode()}...), so nothing has been sent. "
                "Remove it there; if it is none, push with allow_tokens=True (--allow-tokens)."
            )


def _holds(path: Path, patterns: Iterable[re.Pattern[bytes]]) -> bytes | None:
    """What is found first of some patterns."""
    end = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            for pattern in patterns:
                if found := pattern.search(end + chunk):
                    return found[0]
            end = chunk[-OVERLAP:]
    return None


def refuse_hostile_names(names: Iterable[str]) -> None:
    """Raises for a file that would land outside its folder; a Hub can be told to list anything."""
    if hostile := [name for name in names if leaves_folder(name)]:
        raise HubError(f"the repository lists {hostile[0]!r}, which lies outside of it. Nothing has been written.")


def refuse_hostile_files(folder: Path) -> None:
    """Raises for an index of weights or a tokenizer that names files outside its folder."""
    try:
        for inner in (folder, *sorted(path for path in folder.rglob("*") if path.is_dir())):
            check_folder(inner)
    except ValueError as error:
        raise HubError(str(error)) from None


def stale_weights(remote: Iterable[str], files: Iterable[str]) -> list[str]:
    """Weights in a repository that would be loaded instead of, or beside, those that replace them."""
    files = set(files)
    if not any(matches(name, WEIGHTS) for name in files):
        return []
    return sorted(name for name in remote if matches(name, WEIGHTS) and name not in files)


def checksum(path: Path, large: bool) -> str:
    """What the Hub knows a file by: the sha256 of a large one, git's id of a small one."""
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def expected(remote: Mapping[str, RepoFile]) -> dict[str, str]:
    """The checksums that the Hub states, by file name."""
    return {name: file.lfs.sha256 if file.lfs else file.blob_id for name, file in remote.items()}


def differing(files: Mapping[str, Path], checksums: Mapping[str, str]) -> list[str]:
    """The names of files that are missing or not what their checksums say."""
    return [name for name, wanted in checksums.items() if name not in files or not is_intact(files[name], wanted)]


def is_intact(path: Path, wanted: str) -> bool:
    return path.is_file() and checksum(path, large=len(wanted) == 64) == wanted
