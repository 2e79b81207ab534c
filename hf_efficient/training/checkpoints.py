"""Checkpoints that exist whole or not at all.

A checkpoint is written into a folder of another name, forced to disk, given a manifest with every file's size and
SHA-256, and then renamed: what is called checkpoint-<step> was complete at that moment. The manifest tells whether it
still is, so that a run can go back to the newest one that nothing has happened to.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .errors import CheckpointError, TrainingError

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
UNFINISHED, OUTDATED, DAMAGED = ".unfinished", ".outdated", ".damaged"  # suffixes of what is no checkpoint


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints in a folder, oldest step first, intact or not."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def newest_intact(output_dir: str | Path) -> Path | None:
    """The newest intact checkpoint; a warning says what is wrong with newer ones."""
    for checkpoint in reversed(list_checkpoints(output_dir)):
        if not (harm := damage(checkpoint)):
            return checkpoint
        warnings.warn(f"{checkpoint} is skipped: {harm}.", stacklevel=2)
    return None


def damage(checkpoint: Path, by_checksum: bool = True) -> str | None:
    """What is wrong with a checkpoint; None if it is intact. Without checksums only names and sizes count."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        listed = [(name, entry["size"], entry["sha256"]) for name, entry in files.items()]
    except FileNotFoundError:
        return f"it has no {MANIFEST}, so it was never completed, or written without EfficientTrainer or SealCallback"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} can't be read"
    for name, size, _ in listed:  # sizes first, they cost nothing
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    for name, _, digest in listed if by_checksum else ():
        try:
            if sha256(checkpoint / name) != digest:
                return f"{name} is not what was written (its SHA-256 differs)"
        except OSError as error:
            return f"{name} can't be read ({error.strerror})"
    return None


def sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def begin(checkpoint: Path) -> Path:
    """The empty folder that a checkpoint is to be written into."""
    folder = checkpoint.with_name(checkpoint.name + UNFINISHED)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def seal(folder: Path) -> None:
    """Forces a folder that is written completely to disk, with a manifest of what is in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=1) + "\n", encoding="utf-8")
    for path in (*files, folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        force_to_disk(path)


def complete(folder: Path, checkpoint: Path) -> None:
    """Seals a folder and gives it the name of its checkpoint."""
    seal(folder)
    if checkpoint.exists():  # one that was damaged, or that is replaced
        discard(checkpoint)
    folder.rename(checkpoint)
    force_to_disk(checkpoint.parent)


@contextmanager
def explain_failure(checkpoint: Path) -> Iterator[None]:
    """Explains why a checkpoint could not be written, such as a full disk; the previous one is kept."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own
        if isinstance(error, TrainingError):
            raise
        shutil.rmtree(checkpoint.with_name(checkpoint.name + UNFINISHED), ignore_errors=True)
        kept = [path for path in list_checkpoints(checkpoint.parent) if path != checkpoint]
        previous = f"The previous one, {kept[-1]}, is kept" if kept else "There is no previous one"
        raise CheckpointError(
            f"{checkpoint} could not be written: {error}. {previous}. Make room in {checkpoint.parent} and run the "
            "same command again: it goes on from there."
        ) from error


def force_to_disk(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def discard(checkpoint: Path) -> None:
    """Removes a checkpoint; interrupted, it leaves nothing that looks like one."""
    outdated = checkpoint.with_name(checkpoint.name + OUTDATED)
    shutil.rmtree(outdated, ignore_errors=True)
    checkpoint.rename(outdated)
    shutil.rmtree(outdated, ignore_errors=True)


def set_aside(checkpoint: Path) -> None:
    """Takes a damaged checkpoint out of the way, until the next one is complete."""
    aside = checkpoint.with_name(checkpoint.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)


def remove_leftovers(output_dir: str | Path, *suffixes: str) -> None:
    """Removes what interrupted processes left."""
    for suffix in suffixes or (UNFINISHED, OUTDATED):
        for path in Path(output_dir).glob(f"checkpoint-*{suffix}"):
            shutil.rmtree(path, ignore_errors=True)


def rotate(output_dir: str | Path, limit: int | None, keep: Path | None = None) -> None:
    """Removes the oldest checkpoints beyond `limit`, but not `keep`, which counts."""
    remove_leftovers(output_dir, DAMAGED)
    if not limit:
        return
    checkpoints = list_checkpoints(output_dir)
    removable = [path for path in checkpoints[:-1] if keep is None or path.resolve() != Path(keep).resolve()]
    for path in removable[: max(0, len(checkpoints) - limit)]:
        discard(path)


def load_weights(model: nn.Module, checkpoint: str | Path) -> None:
    """Loads a model's weights, all of them or none."""
    checkpoint = Path(checkpoint)
    try:
        stored = read_weights(checkpoint)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"the weights in {checkpoint} can't be read: {error}.") from error
    put_weights(model, stored, checkpoint)


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    if not (checkpoint / WEIGHTS_INDEX).is_file():
        return load_file(checkpoint / WEIGHTS)
    shards = set(json.loads((checkpoint / WEIGHTS_INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    if any(Path(shard).name != shard for shard in shards):
        raise ValueError(f"{WEIGHTS_INDEX} names files outside its folder")
    return {name: tensor for shard in sorted(shards) for name, tensor in load_file(checkpoint / shard).items()}


def put_weights(model: nn.Module, stored: dict[str, Tensor], source: str | Path) -> None:
    """Copies tensors into a model that must have exactly these; tied ones are stored once."""
    own = model.state_dict()
    places = {name: tensor.data_ptr() for name, tensor in own.items() if tensor.numel()}
    filled = {places[name] for name in stored if name in places}
    missing = [name for name in own if name not in stored and places.get(name) not in filled]
    unknown = [name for name in stored if name not in own]
    shapes = [name for name in stored if name in own and stored[name].shape != own[name].shape]
    for names, what in ((missing, "lacks"), (unknown, "has, unlike the model,"), (shapes, "has another shape of")):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(
                f"{source} does not fit the model: it {what} {', '.join(names[:3])}{more}. If the model has been "
                "changed since, give the run another output_dir."
            )
    model.load_state_dict(stored, strict=False)


def replace_file(file: str | Path, text: str) -> None:
    """Writes a file so that it is the old one or the new one, never half of it."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    force_to_disk(temporary)
    temporary.replace(file)
