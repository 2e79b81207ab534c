"""A run that stands on another: what it takes over, what it changes, and what is no base."""

import pytest
import yaml

from hf_efficient.training.errors import RunError
from hf_efficient.training.run import load_run
from hf_efficient.training.run_file import read_file

FIRST = {
    "task": "image-classification",
    "dataset": "digits",
    "model": {"model_type": "vit", "hidden_size": 32},
    "training": {"budget": "8min", "lr_scheduler_kwargs": {"a": 1, "b": 2}, "seed": 1},
}


@pytest.fixture(autouse=True)
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name, **sections):
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(sections))
        return str(file)

    write("first", **FIRST)
    return write


def test_values_are_laid_over_the_bases(write):
    file = write("second", base="first", dataset={"limit": 9}, training={"seed": 2, "lr_scheduler_kwargs": {"c": 3}})
    found = read_file(file)
    assert found["dataset"] == {"name": "digits", "limit": 9} and found["task"] == FIRST["task"]
    assert found["training"] == {"budget": "8min", "seed": 2, "lr_scheduler_kwargs": {"c": 3}}
    assert found["model"] == FIRST["model"] and "base" not in found
    assert read_file(write("third", base="second", energy=None))["training"]["seed"] == 2


def test_steps_take_the_place_of_a_budget(write):
    found = read_file(write("second", base="first", training={"max_steps": 3}))
    assert "budget" not in found["training"] and found["training"]["max_steps"] == 3
    for words in (["--max_steps", "3", "--budget", "null"], ["--budget", "null", "--max_steps", "3"]):
        assert load_run([write("third", base="first"), *words]).training.max_steps == 3  # in any order


def test_of_several_bases_the_last_goes_first(write):
    write("parts/long", training={"seed": 5, "weight_decay": 0.1})
    write("parts/short", base="long", training={"seed": 6})  # beside itself
    found = read_file(write("second", base=["first", "parts/short"], training={"weight_decay": 0.2}))
    assert found["training"]["seed"] == 6 and found["training"]["weight_decay"] == 0.2


def test_a_base_may_come_with_the_package(write):
    run = load_run([write("mine", base="digits_hugginggreen_vit", training={"seed": 7})])
    assert run.name == "mine" and run.training.seed == 7 and run.model["model_type"] == "hugginggreen_vit"
    assert run.training.output_dir == "results/mine"


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("frist", r"second\.yaml: base: there is no file 'frist'"),
        ("second", "base: second stands on .*second.yaml itself"),
        (["first", "loop"], "base: second stands on .*loop.yaml itself"),
        (3, "base must be the name of a run, or a list of names, got 3"),
        ([{}], "base must be the name of a run, or a list of names"),
    ],
)
def test_what_is_no_base_is_said(write, base, message):
    write("loop", base="second")
    with pytest.raises(RunError, match=message):
        read_file(write("second", base=base))
