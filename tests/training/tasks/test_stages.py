"""Which task a run is for, and stages, each on what the one before learned."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from task_runs import STAGES, write

from hf_efficient.training.configs import list_configs
from hf_efficient.training.errors import RunError
from hf_efficient.training.run import load_run
from hf_efficient.training.tasks import TASKS, find_task, train
from hf_efficient.training.tasks.stages import train_in_stages

CONTRAST = "contrastive-learning"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path, quickly):
    monkeypatch.chdir(tmp_path)


def test_three_stages_are_one_command(capsys):
    files = [write(name, **sections) for name, sections in STAGES.items()]
    results = train_in_stages(files, ["--output_dir", "out", "--seed", "3"])
    assert [result["seed"] for result in results] == [3, 3, 3]
    for before, name in (("masked", "contrastive"), ("contrastive", "finetune")):
        given = yaml.safe_load(Path(f"out/{name}/run.yaml").read_text())
        assert given["model"]["pretrained"] == f"out/{before}"
    first, last = (load_file(f"out/{name}/model.safetensors") for name in ("contrastive", "finetune"))
    assert all(torch.equal(last[f"vit.{name}"], x) for name, x in first.items())  # it was frozen
    rows = json.loads(Path("out/stages.json").read_text())
    assert [row["stage"] for row in rows] == ["masked", "contrastive", "finetune", "all"]
    assert rows[-1]["steps"] == sum(row["steps"] for row in rows[:-1])
    assert "accuracy" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": CONTRAST, "training": {"images_per_class": 4, "per_device_train_batch_size": 80}},
            "are 10",
        ),
        ({"task": CONTRAST, "training": {"images_per_class": 8, "per_device_train_batch_size": 16}}, "only"),
        ({"task": "masked-image-modeling", "augmentation": {"mixup": 0.2}}, "without mixup"),
    ],
)
def test_what_a_stage_cannot_do_is_told(changes, message):
    with pytest.raises(RunError, match=message):
        train(write("wrong", **changes))


def test_stages_must_have_names_of_their_own():
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(write("x")).rename(f"{folder}/x.yaml")
    with pytest.raises(RunError, match="different names"):
        train_in_stages(["a/x.yaml", "b/x.yaml"])


@pytest.mark.parametrize("file", list_configs().values(), ids=lambda file: file.stem)
def test_every_config_loads_for_its_task(file, monkeypatch):
    main = TASKS[find_task(str(file), list(TASKS))]

    class LoadedError(Exception):
        """Stops before the data are read."""

    def load(*args, **options):
        raise LoadedError(load_run(*args, **options))

    monkeypatch.setitem(main.__globals__, "load_run", load)
    with pytest.raises(LoadedError) as stopped:
        main([str(file)])
    (run,) = stopped.value.args
    assert run.name == file.stem and TASKS[run.task] is main


@pytest.mark.parametrize(
    ("task", "allowed", "message"),
    [
        ({}, [], "does not say what it trains: add `task:` with one of image-classification, object-detection"),
        ({"task": "dancing"}, [], "task='dancing' must be one of image-classification"),
        ({"task": 3}, [], "task must be a word"),
        (
            {"task": "image-classification"},
            ["object-detection"],
            "run.yaml is a run of image-classification, not of object-detection; `hf-efficient train` takes any",
        ),
    ],
)
def test_a_wrong_task_is_told(task, allowed, message):
    with pytest.raises(RunError, match=message):
        train(write("run", **task), tasks=allowed)


def test_a_task_is_called_with_its_own_runs_only():
    with pytest.raises(RunError, match=r"run.yaml is a run of text-generation, not of image-classification"):
        TASKS["image-classification"]([write("run", task="text-generation")])


def test_a_run_says_its_task_where_it_ends():
    """So that its run.yaml can be given to `hf-efficient train` again."""
    results = train(write("run"), ["--max_steps", "1"], ["image-classification"])
    assert results["task"] == "image-classification"
    assert yaml.safe_load(Path("results/run/run.yaml").read_text())["task"] == "image-classification"
