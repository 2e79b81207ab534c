"""What the YAML file of a run says, on top of other files that it names.

    base: enwik8_performer              # a file beside it, or the name of one that comes with the package
    base: [enwik8_performer, parts/word]

Sections are laid over those of the base, key by key: a value takes the place of the base's, a mapping too. Of several
bases the later go before the earlier. A base may have a base of its own.
"""

import json
from pathlib import Path

from .configs import find_config
from .errors import RunError
from .run_keys import suggestion
from .run_values import read_yaml

SECTIONS = ("dataset", "model", "augmentation", "training", "energy")
INSTEAD_OF = {"budget": "max_steps", "max_steps": "budget"}  # one takes the other's place


def read_file(file: str, above: tuple[Path, ...] = ()) -> dict:
    """The sections in a YAML file and its bases.

    Args:
        above: the files whose base it is.
    """
    found = read_own(file)
    bases = found.pop("base", [])
    above = (*above, Path(file).resolve())
    sections = {}
    for base in [bases] if isinstance(bases, str) else bases:
        path = find_base(base, file)
        if path.resolve() in above:
            raise RunError(f"{file}: base: {base} stands on {file} itself.")
        sections = overlay(sections, read_file(str(path), above))
    return overlay(sections, found)


def find_base(name: str, file: str) -> Path:
    beside = Path(file).parent / name
    for path in (beside, beside.with_name(f"{beside.name}.yaml")):
        if path.is_file():
            return path
    try:
        return find_config(name)
    except RunError as error:
        raise RunError(f"{file}: base: {error}") from error


def overlay(below: dict, over: dict) -> dict:
    """Sections of both; the second's values go before the first's."""
    merged = {**below, **over}
    for name in SECTIONS:
        if name in below and name in over:
            gone = displaced(over[name]) if name == "training" else set()
            merged[name] = {key: value for key, value in below[name].items() if key not in gone} | over[name]
    return merged


def displaced(training: dict) -> set[str]:
    """Keys of the section `training` whose place these take; `budget: null` takes nobody's."""
    return {INSTEAD_OF[key] for key, value in training.items() if key in INSTEAD_OF and value is not None}


def read_own(file: str) -> dict:
    """What one file says itself."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    found = read_yaml(text, file)
    if not isinstance(found, dict):
        raise RunError(f"{file} must have sections, such as `model:` and `training:`.")
    known = ("base", "task", *SECTIONS)
    for name, section in found.items():
        if name not in known:
            raise RunError(f"{file}: there is no section {name!r}; {suggestion(str(name), known)}")
        if name == "task":
            if not isinstance(section, str):
                raise RunError(f"{file}: task must be a word, such as image-classification, got {section!r}.")
        elif name == "base":
            names = [section] if isinstance(section, str) else section
            if not isinstance(names, list) or not all(isinstance(x, str) for x in names):
                raise RunError(f"{file}: base must be the name of a run, or a list of names, got {section!r}.")
        elif name == "dataset" and isinstance(section, str):
            found[name] = {"name": section}
        elif section is None:
            found[name] = {}
        elif not isinstance(section, dict):
            raise RunError(f"{file}: {name} must be a mapping of keys to values, got {section!r}.")
        elif odd := [key for key in section if not isinstance(key, str)]:
            raise RunError(f"{file}: {name} has the key {json.dumps(odd[0], default=str)}, which is no word.")
    return found
