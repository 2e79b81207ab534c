"""The table of private methods is what the trainers override and call; one that has gone is told at construction."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest
from runs import make_trainer
from transformers import Trainer

from hf_efficient import training
from hf_efficient.training.errors import RunError
from hf_efficient.training.trainer import EfficientTrainer
from hf_efficient.training.trainer_methods import CALLED, OVERRIDDEN, SUPPORTED


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def training_modules() -> list:
    return [
        importlib.import_module(f"{training.__name__}.{module.name}")
        for module in pkgutil.iter_modules(training.__path__)
    ]


def our_trainers() -> set[type]:
    """Every class of ours that stands before Trainer among the bases of a trainer."""
    values = [value for module in training_modules() for value in vars(module).values()]
    trainers = [value for value in values if isinstance(value, type) and issubclass(value, EfficientTrainer)]
    return {base for trainer in trainers for base in trainer.__mro__ if not issubclass(Trainer, base)} - {Trainer}


def test_the_table_names_what_is_overridden():
    names = {cls.__name__ for cls in our_trainers()}
    assert names >= {"EfficientTrainer", "HubMixin", "MemoryTrainer", "DetectionTrainer"}
    private = {name for cls in our_trainers() for name in vars(cls) if is_private(name)}
    assert {name for name in private if hasattr(Trainer, name)} == set(OVERRIDDEN)


def test_the_table_names_what_is_called():
    """What is reached through `self`, `super()` or `trainer` anywhere in the room."""
    trees = [ast.parse(Path(module.__file__).read_text(encoding="utf-8")) for module in training_modules()]
    reached = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in reached if is_private(name) and hasattr(Trainer, name)}
    assert private - set(OVERRIDDEN) == set(CALLED)


@pytest.mark.parametrize("name", ["_run_epoch", "_finish_current_push", "_save_rng_state"])
def test_a_method_that_has_gone_is_named(tmp_path, monkeypatch, name):
    monkeypatch.delattr(Trainer, name)
    with pytest.raises(RunError, match=f"has no Trainer.{name}, .*{SUPPORTED}"):
        make_trainer(tmp_path)


def test_the_supported_versions_are_those_of_the_package():
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert f'"{SUPPORTED}"' in pyproject.read_text(encoding="utf-8")
