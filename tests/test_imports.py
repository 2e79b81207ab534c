"""The house rules that the source itself can be asked about: who imports whom, what is called what, how long it is.

Imports and names are read from the syntax tree, so what stands inside a function or behind a condition counts too.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hf_efficient.attention import get_attention, list_attentions

ROOT = Path(__file__).parents[1]
PACKAGE, SCRIPTS, BENCHMARKS = ROOT / "hf_efficient", ROOT / "scripts", ROOT / "benchmarks"

# torch, transformers <- linear <- attention <- layers <- models <- training, hub, model_card <- experiments, app
# <- cli, scripts, benchmarks.
# A room is a folder or a file directly in the package; each is listed with the rooms that it may import beside itself.
WORDS = {"errors", "extras", "tables"}  # of commands: they know nothing of models
LEFT = {"linear", "attention", "layers", "models", "remote_code", "data", "energy", "charts", "visualization", "zoo"}
USE = {"inference", "onnx_export", "onnx_language", "serving"}
RIGHT = {"training", "hub", "model_card"}
MAY_IMPORT = {
    "linear": set(),
    "attention": {"linear"},
    "layers": {"linear", "attention"},
    "remote_code": {"attention"},
    "models": {"linear", "attention", "layers", "remote_code"},
    "data": set(),
    "charts": set(),
    "energy": {"charts"},
    "visualization": {"charts"},
    "torchao_messages": set(),
    "zoo": set(),
    **dict.fromkeys(WORDS, WORDS),
    **{room: LEFT | WORDS | USE | {"__init__"} for room in USE},
    **{room: LEFT | WORDS | USE | RIGHT | {"__init__"} for room in RIGHT},
    "experiments": LEFT | WORDS | USE | RIGHT | {"__init__"},
    "app": LEFT | WORDS | USE | {"hub", "__init__"},
    "cli": LEFT | WORDS | USE | RIGHT | {"experiments", "app", "__init__"},
    "__main__": {"cli"},
    "__init__": LEFT | RIGHT | {"torchao_messages"},
}

# Copied beside the weights, so it must run where only transformers, and what comes with it, is installed.
SHIPS = {"linear", "attention", "layers", "models", "remote_code"}
SHIPS_WITH = {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names

MAX_LINES = 450
# What is done -> what that must not import. transformers' models import accelerate, scipy and torchvision themselves.
LIGHT = {
    "import hf_efficient": {"datasets", "codecarbon", "matplotlib", "transformers.trainer", "hf_efficient.training"},
    "import hf_efficient.energy": {"codecarbon", "matplotlib", "pandas"},
    "from hf_efficient.cli import main; main(['--help']); main(['list', 'configs'])": {
        *("datasets", "matplotlib", "codecarbon", "onnx", "sklearn", "gradio"),
    },
}


class Import(NamedTuple):
    line: int
    text: str  # as written
    target: tuple[str, ...]  # absolute dotted name, split; empty if it leaves the package
    relative: bool


def read_imports(file: Path, package: Path) -> Iterator[Import]:
    """Every import in the file, wherever it stands."""
    home = (package.name, *file.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, ast.unparse(node), tuple(alias.name.split(".")), False)
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            above = home[: max(len(home) - node.level + 1, 0)] if node.level else ()
            leaves = node.level > len(home)
            for alias in node.names:
                target = () if leaves else (*above, *module, alias.name)
                yield Import(node.lineno, ast.unparse(node), target, node.level > 0)


def objection(room: str, imported: Import, package: str) -> str | None:
    """Why this room may not import that, or None if it may."""
    if not imported.target:
        return "it reaches above the package"
    top, *inner = imported.target
    if top in {"scripts", "benchmarks", "tests"}:
        return f"{top} import the library, never the reverse"
    if top != package:
        if room in SHIPS and top not in SHIPS_WITH:
            return (
                f"{room} ships to the Hub: only torch, transformers, huggingface_hub, the standard library, relatives"
            )
        return None
    if room in SHIPS and not imported.relative:
        return f"{room} ships to the Hub, where {package} is not installed: import relatives relatively"
    target = inner[0] if inner and inner[0] in MAY_IMPORT else "__init__"
    if target == room or target in MAY_IMPORT[room]:
        return None
    return f"{room} may import {', '.join(sorted(MAY_IMPORT[room])) or 'no other room'}; {target} is not among them"


def violations(package: Path) -> list[str]:
    found = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package.parent).as_posix()
        room = file.relative_to(package).with_suffix("").parts[0]
        if room not in MAY_IMPORT:
            found.append(f"{name}: no room is called {room}; move the file into one, or say here what it may import")
            continue
        for imported in read_imports(file, package):
            if reason := objection(room, imported, package.name):
                found.append(f"{name}:{imported.line}: `{imported.text}`: {reason}")
    return found


def imported_scripts(*folders: Path) -> list[str]:
    """Where one of these folders imports a script: as a neighbour, or as scripts.<name>."""
    scripts, found = {file.stem for file in folders[0].glob("*.py")}, []
    for folder in folders:
        for file in sorted(folder.glob("*.py")):
            neighbours = scripts if folder == folders[0] else set()
            found += [
                f"{folder.name}/{file.name}:{imported.line}: `{imported.text}`"
                for imported in read_imports(file, folder)
                if imported.target and imported.target[0] in {"scripts", *neighbours}
            ]
    return found


def names_its_mechanism(file: Path) -> bool:
    """Whether a class in the file has the file's name: LinearElu, LSH or FNetAttention in linear_elu, lsh, fnet."""
    wanted = file.stem.replace("_", "")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name.lower() for node in tree.body if isinstance(node, ast.ClassDef)}
    return not classes.isdisjoint({wanted, wanted + "attention"})


def is_mechanism(file: Path) -> bool:
    """Whether a class in the file is decorated with `register_attention`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    decorators = [mark for node in tree.body if isinstance(node, ast.ClassDef) for mark in node.decorator_list]
    return any(ast.unparse(mark).startswith("register_attention") for mark in decorators)


def mechanism_files() -> list[Path]:
    return [file for file in sorted((PACKAGE / "attention").glob("*.py")) if is_mechanism(file)]


def write(root: Path, name: str, source: str) -> Path:
    """A made-up package whose one file holds `source`."""
    file = root / "hf_efficient" / name
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    return root / "hf_efficient"


def test_imports_go_leftward_only():
    assert not (found := violations(PACKAGE)), "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("attention/lsh.py", "from ..layers.block import Block", "attention may import linear; layers is not"),
        ("linear/features.py", "from ..attention.base import Attention", "linear may import no other room"),
        ("linear/features.py", "import numpy as np", "linear ships to the Hub"),
        ("attention/lsh.py", "from .. import layers", "layers is not among them"),
        ("attention/lsh.py", "from .. import __version__", "__init__ is not among them"),
        ("attention/lsh.py", "import numpy as np", "attention ships to the Hub"),
        ("attention/lsh.py", "from hf_efficient.attention.base import Attention", "import relatives relatively"),
        ("attention/lsh.py", "def f():\n    import einops", "attention ships to the Hub"),
        ("attention/__init__.py", "from ..models import base", "models is not among them"),
        ("attention/lsh.py", "from ... import setup", "reaches above the package"),
        ("layers/block.py", "if 0:\n    from ..models.base import X", "models is not among them"),
        ("models/vit/modeling_vit.py", "from ...training import metrics", "training is not among them"),
        ("models/vit/modeling_vit.py", "import torch, datasets", "models ships to the Hub"),
        ("remote_code.py", "from .models.base import X", "models is not among them"),
        ("data/images.py", "from ..models.base import X", "models is not among them"),
        ("data/images.py", "import hf_efficient", "__init__ is not among them"),
        ("energy.py", "from .attention import build_attention", "attention is not among them"),
        ("energy.py", "from hf_efficient.models import base", "models is not among them"),
        ("hub.py", "from scripts.train import main", "scripts import the library"),
        ("hub.py", "def f():\n    from benchmarks import timing", "benchmarks import the library"),
        ("utils.py", "", "no room is called utils"),
    ],
)
def test_a_violation_is_named(tmp_path, name, source, reason):
    (found,) = violations(write(tmp_path, name, source))
    line = f":{source.count(chr(10)) + 1}: `{source.splitlines()[-1].strip()}`" if source else ""
    assert found.startswith(f"hf_efficient/{name}{line}: ")
    assert reason in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("__init__.py", "from . import attention, models, hub"),
        ("attention/__init__.py", "from . import lsh\nfrom .base import Attention"),
        ("attention/lsh.py", "import math\nfrom torch import nn\nfrom .base import Attention"),
        ("attention/lsh.py", "from ..linear.chunked import kernel_attention"),
        ("layers/block.py", "from ..attention import build_attention\nfrom .memory import Memory"),
        ("models/vit/modeling_vit.py", "from ...attention.base import X\nfrom ..base import Y\nimport transformers"),
        ("training/trainers.py", "from ..models import base\nfrom ..energy import EnergyReport\nimport accelerate"),
        ("model_card.py", "from . import __version__, energy\nfrom hf_efficient.models import base"),
        ("data/text.py", "def f():\n    import datasets\n    from .images import g"),
    ],
)
def test_what_is_allowed_passes(tmp_path, name, source):
    assert violations(write(tmp_path, name, source)) == []


def test_nobody_imports_a_script():
    assert not (found := imported_scripts(SCRIPTS, BENCHMARKS)), "\n" + "\n".join(found)


def test_an_imported_script_is_seen(tmp_path):
    for name, source in {
        "scripts/train.py": "import torch",
        "scripts/evaluate.py": "def f():\n    from train import score",
        "benchmarks/training.py": "from scripts.train import main",
        "benchmarks/timing.py": "from train import main",  # a library's, as no script stands beside it
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    assert imported_scripts(tmp_path / "scripts", tmp_path / "benchmarks") == [
        "scripts/evaluate.py:2: `from train import score`",
        "benchmarks/training.py:1: `from scripts.train import main`",
    ]


@pytest.mark.parametrize("file", mechanism_files(), ids=lambda file: file.stem)
def test_a_mechanism_is_called_like_its_file(file):
    assert names_its_mechanism(file), f"{file.name} defines no class whose name in snake_case is {file.stem}"


def test_a_mechanism_is_registered_under_its_file_name():
    homes = {name: get_attention(name).__module__ for name in list_attentions()}
    ours = {name: home for name, home in homes.items() if home.startswith("hf_efficient.")}
    assert ours == {file.stem: f"hf_efficient.attention.{file.stem}" for file in mechanism_files()}


@pytest.mark.parametrize(
    ("stem", "source", "named"),
    [
        ("linear_elu", "class LinearElu: ...", True),
        ("xcit", "class XCiT: ...", True),
        ("fnet", "class FNetAttention: ...", True),
        ("lsh", "class Hashing: ...", False),
        ("lsh", "class LSHState: ...", False),
        ("lsh", "def lsh(): ...", False),
    ],
)
def test_a_misnamed_mechanism_is_seen(tmp_path, stem, source, named):
    (tmp_path / f"{stem}.py").write_text(source)
    assert names_its_mechanism(tmp_path / f"{stem}.py") is named


def test_no_file_is_too_long():
    files = [file for folder in (PACKAGE, SCRIPTS, BENCHMARKS) for file in folder.rglob("*.py")]
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    long = [f"{file.relative_to(ROOT)} has {n} lines" for file, n in lengths.items() if n > MAX_LINES]
    assert not long, f"more than {MAX_LINES} lines are two files: {'; '.join(sorted(long))}"


def test_importing_is_light_and_quiet():
    code = "import sys, contextlib, os\n"
    for done, heavy in LIGHT.items():  # one process: each imports more than the one before
        code += f"with contextlib.redirect_stdout(open(os.devnull, 'w')): {done}\n"
        code += f"print(*sorted({heavy} & set(sys.modules)))\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr
    for done, loaded in zip(LIGHT, run.stdout.splitlines(), strict=True):
        assert not loaded, f"`{done}` also imports {loaded}"
    assert run.stderr == ""


def test_importing_the_package_leaves_the_import_system_alone():
    finders = [type(finder).__module__ for finder in sys.meta_path]
    assert not any(module.startswith("hf_efficient") for module in finders), finders
