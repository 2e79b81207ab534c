"""Code beside the weights, so that a repository loads where hf_efficient is not installed (trust_remote_code=True).

transformers looks for that code in one flat folder, and follows lines that read `from .sibling import name`, nothing
else. So the modules that a model needs are copied under flat names, `linear/chunked.py` as `linear_chunked.py`,
with their import lines rewritten; the rest of the text stays as it is. Of the attention mechanisms only the one that
the config names goes along, and a line about each of the others (`attention/mechanisms_without_code.py`).

A model that was itself loaded from such a folder is saved by the same steps: it is flat already, so nothing changes.
There each of transformers' Auto classes may have loaded a copy of its own, so nothing here is remembered but texts.
"""

import ast
import importlib.util
import os
import re
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from .attention import get_attention, list_attentions
from .attention.mechanisms_without_code import describe_attention

LOADED = "transformers_modules."  # where transformers puts the code of repositories
ORIGIN = "# From hf_efficient "  # begins every file written here

# What transformers takes for an import, even in a docstring.
LOOKS_LIKE_IMPORT = re.compile(r"^\s*(from\s+\.\S+\s+import|import\s+\.\S+\s*$)", re.MULTILINE)


class Import(NamedTuple):
    module: str
    names: list[str]


def write_code(config, folder: str | os.PathLike) -> None:
    """Writes what a config's models are made of into `folder`, and enters their classes into `config.auto_map`."""
    home = type(config).__module__
    if not is_ours(home):
        return _warn(
            f"{type(config).__name__} is defined in {home}, not in hf_efficient: the code is not saved with it, and "
            "the repository loads only where that module is imported."
        )
    modeling = modeling_module(config)
    if modeling is not None:  # otherwise a config that was loaded by itself
        config.auto_map = auto_map(config, modeling)
    if not is_ours(mechanism := get_attention(config.attention).__module__):
        _warn(
            f"attention={config.attention!r} is defined in {mechanism}, not in hf_efficient: its code is not saved, "
            "and the repository loads only where hf_efficient is installed and that module is imported."
        )
    _write(Path(folder), flatten(modeling or home, config.attention))


def modeling_module(config) -> str | None:
    """The module of a config's models, if it is known here."""
    beside = type(config).__module__.replace("configuration_", "modeling_")
    return beside if importlib.util.find_spec(beside) else config.model_module


def auto_map(config, modeling: str) -> dict[str, str]:
    """transformers' Auto classes -> the family's classes as "file.class". Entries of foreign classes are kept."""
    name = type(config).__name__
    models = {model: _auto_class(model.removeprefix(name.removesuffix("Config"))) for model in _classes(modeling)}
    found = {"AutoConfig": f"{flat_name(type(config).__module__)}.{name}"}
    for model in sorted(models, key=lambda model: model not in (config.architectures or ())):  # its own come first
        if models[model]:
            found.setdefault(models[model], f"{flat_name(modeling)}.{model}")
    given = getattr(config, "auto_map", None) or {}
    foreign = {auto: ref for auto, ref in given.items() if str(ref).rpartition(".")[2] not in {name, *models}}
    for architecture in config.architectures or ():
        if architecture not in models and not any(str(ref).endswith(f".{architecture}") for ref in foreign.values()):
            _warn(
                f"{architecture} is not one of hf_efficient's models: the code of its family is saved, its own is not."
            )
    return found | foreign


def _auto_class(rest: str) -> str | None:
    """The Auto class for what follows a family's name in the name of a model."""
    rest = rest.replace("SequencePair", "Sequence")  # which has none of its own
    if rest.startswith("For"):
        return f"AutoModel{rest}"
    return {"Model": "AutoModel", "Backbone": "AutoBackbone"}.get(rest)


@lru_cache(maxsize=64)
def _classes(module: str) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(_source(module)).body if isinstance(node, ast.ClassDef))


# From rooms to one flat folder.


@lru_cache(maxsize=64)
def flatten(entry: str, attention: str) -> dict[str, str]:
    """File name -> text of a module, all that it imports of its own package, and the mechanism that is used."""
    texts, packages, waiting = {}, {}, [entry]
    while waiting:
        module = waiting.pop()
        if module in texts:
            continue
        texts[module], imports = rewrite(_source(module), module)
        for imported in imports:
            if _is_package(imported.module):
                used = _homes(imported, module)
                if imported.module == _attention_package():
                    used |= _registering(attention)
                packages.setdefault(imported.module, {}).update(used)
                waiting += used.values()
            else:
                waiting.append(imported.module)
    for package, names in packages.items():
        texts[package] = _package_text(package, names, attention, present=texts.keys())
    files = {f"{flat_name(module)}.py": _signed(text, module) for module, text in sorted(texts.items())}
    if len(files) < len(texts):
        raise ValueError(f"two of these modules would have the same file beside the weights: {', '.join(texts)}.")
    return files


def flat_name(module: str) -> str:
    """hf_efficient.linear.chunked -> linear_chunked; models.x.modeling_x, which auto_map names, -> modeling_x"""
    if module.startswith(LOADED):
        return module.rpartition(".")[2]
    parts = module.split(".")[1:]
    return parts[-1] if len(parts) > 1 and parts[-1].endswith(f"_{parts[-2]}") else "_".join(parts)


def rewrite(text: str, module: str) -> tuple[str, list[Import]]:
    """The text of a module with flat imports, and what it imports of its own package."""
    lines, imports, starts = text.split("\n"), [], set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        if node.module is None:
            raise ValueError(
                f"{module}, line {node.lineno}: `{ast.unparse(node)}` can't be followed beside the weights; "
                "import names from a module."
            )
        target = importlib.util.resolve_name("." * node.level + node.module, module.rpartition(".")[0])
        imports.append(Import(target, [alias.name for alias in node.names]))
        line, start = lines[node.lineno - 1], node.col_offset
        lines[node.lineno - 1] = line[:start] + re.sub(
            r"from\s+\.[\w.]*", f"from .{flat_name(target)}", line[start:], count=1
        )
        starts.add((node.lineno, start))
    return _hide_examples("\n".join(lines), starts), imports


def _hide_examples(text: str, starts: set[tuple[int, int]]) -> str:
    """Escapes the blank of a `from .x import` in a docstring: the string stays as it is, but looks like no import."""

    def hide(match: re.Match) -> str:
        before, found = text[: match.start(1)], match.group(1)
        if (before.count("\n") + 1, len(before) - before.rfind("\n") - 1) not in starts:
            found = re.sub(r"\s+", r"\\x20", found, count=1)
        return text[match.start() : match.start(1)] + found

    return LOOKS_LIKE_IMPORT.sub(hide, text)


def _package_text(package: str, names: dict[str, str], attention: str, present) -> str:
    """One module that stands for a package: names, from where the package has them; mechanisms that stay behind."""
    lines = [f'"""What is used here of {package}."""', ""]
    for home in sorted(set(names.values())):
        wanted = ", ".join(sorted(name for name in names if names[name] == home))
        lines.append(f"from .{flat_name(home)} import {wanted}")
    if package == _attention_package():
        others = [cls for cls in map(get_attention, list_attentions()) if cls.__module__ not in present]
        told = [cls for cls in others if is_ours(cls.__module__) or cls.name == attention]
        lines += ["", *(describe_attention(cls) for cls in told)]
    return "\n".join(lines) + "\n"


def _attention_package() -> str:
    return get_attention.__module__.rpartition(".")[0]


def _registering(attention: str) -> dict[str, str]:
    """What nobody imports by name, because mechanisms register themselves, and where it is found."""
    cls, names = get_attention(attention), {"declare_attention": describe_attention.__module__}
    return names | ({cls.__name__: cls.__module__} if is_ours(cls.__module__) else {})


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _is_package(module: str) -> bool:
    return importlib.util.find_spec(module).submodule_search_locations is not None


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    text = spec.loader.get_source(module)
    if text is None:
        raise OSError(f"{module} has no source that could be saved beside the weights, only {spec.origin}.")
    return text


def _homes(imported: Import, importer: str) -> dict[str, str]:
    """What is imported of a package -> the module that its __init__ has it from."""
    homes = {
        alias.name: importlib.util.resolve_name(f".{node.module}", imported.module)
        for node in ast.parse(_source(imported.module)).body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    if lost := [name for name in imported.names if name not in homes]:
        raise ValueError(
            f"{importer} imports {', '.join(lost)} of {imported.module}, whose __init__ has it from no module: that "
            "can't be followed beside the weights."
        )
    return {name: homes[name] for name in imported.names}


def _signed(text: str, module: str) -> str:
    if module.startswith(LOADED):
        return text
    package, _, path = module.partition(".")
    return f"{ORIGIN}{sys.modules[package].__version__}, {path}. Apache License 2.0.\n{text}"


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        # Written even where nothing has changed: transformers uploads the files that are newer than its call.
        unfinished = folder / f".{name}.{os.getpid()}.tmp"
        try:
            unfinished.write_text(text, encoding="utf-8", newline="\n")
            os.replace(unfinished, folder / name)
        finally:
            unfinished.unlink(missing_ok=True)
    for file in folder.glob("*.py"):
        if file.name not in files and file.read_bytes().startswith(ORIGIN.encode()):
            file.unlink()  # of an earlier save, with another mechanism


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)
