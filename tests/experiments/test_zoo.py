import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification, pipeline
from transformers.loss.loss_for_object_detection import box_iou

import hf_efficient
from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification, image_processor_for, zoo
from hf_efficient.cli import main
from hf_efficient.errors import CommandError
from hf_efficient.experiments.zoo import MODELS, build, described
from hf_efficient.inference import task_of
from hf_efficient.training.evaluation import evaluate

NAME = "hugginggreen-vit-cifar10"
DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def run(tmp_path):
    """As training leaves it"""
    config = HuggingGreenViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = HuggingGreenViTForImageClassification(config)
    model.save_pretrained(tmp_path / "run")
    image_processor_for(config).save_pretrained(tmp_path / "run")
    results = {
        **{"run": MODELS[NAME][0], "dataset": "cifar10", "metrics": {"test_accuracy": 0.5}, "parameters": 99},
        **{"steps": 10, "epochs": 1.0, "train_seconds": 1.0, "processes": 1, "device": "cpu", "threads": 1, "seed": 3},
        **{"date": "2026-11-18", "versions": {}, "settings": {"training": {"output_dir": "/home/me/run"}}},
        "command": "hf-efficient train cifar10_hugginggreen_vit_small --output_dir /home/me/run --seed 3",
    }
    (tmp_path / "run" / "results.json").write_text(json.dumps(results))
    return tmp_path / "run", model


def test_a_packed_model_is_the_run_s_in_half_precision(run, tmp_path):
    folder, model = run
    target = build(NAME, folder, tmp_path / NAME)
    assert not list(target.glob("*.py"))  # the package is there
    assert all(x.dtype != torch.float32 for x in load_file(target / "model.safetensors").values())
    loaded = AutoModelForImageClassification.from_pretrained(target)
    assert loaded.dtype == torch.float32
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(loaded.eval()(x).logits, model.eval()(x).logits, atol=2e-3, rtol=1e-2)
    assert len(pipeline("image-classification", str(target))(Image.new("RGB", (9, 7), "red"))) == 2
    written = (target / "README.md").read_text() + (target / "results.json").read_text()
    assert "/home/me" not in written and "--seed 3" in written
    assert f'hf_efficient.zoo.path("{NAME}")' in written


def test_a_run_of_another_config_is_refused(run, tmp_path):
    with pytest.raises(CommandError, match="mobilevit-v2-cifar10 is made by cifar10_mobilevit_v2_small"):
        build("mobilevit-v2-cifar10", run[0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_half_precision_can_t_hold_are_refused(run, tmp_path):
    folder, model = run
    with torch.no_grad():
        next(model.parameters()).fill_(1e6)
    model.save_pretrained(folder)
    with pytest.raises(CommandError, match="does not fit into half precision"):
        build(NAME, folder, tmp_path / "out")


@pytest.mark.parametrize(("argument", "message"), [("nothing", "no finished run"), (None, "has no model 'cat'")])
def test_what_can_t_be_built_is_said(tmp_path, argument, message):
    with pytest.raises(CommandError, match=message):
        build(NAME if argument else "cat", argument and tmp_path / argument, tmp_path / "out")


def test_unknown_names_are_answered_with_known_ones():
    with pytest.raises(ValueError, match=f"Did you mean {NAME}"):
        zoo.path("huggingreen-vit-cifar10")


@pytest.mark.parametrize("name", zoo.list())
def test_each_model_works(name):
    folder = Path(hf_efficient.zoo.path(name))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5_200_000
    task = task_of(str(folder))
    answer = pipeline(task, str(folder))
    if task == "text-generation":
        text = answer("The history of ", max_new_tokens=40, do_sample=False)[0]["generated_text"]
        assert len(text) > 40
    else:
        gradient = Image.linear_gradient("L").convert("RGB")
        assert answer(gradient, **({"threshold": 0.0} if task == "object-detection" else {}))


@pytest.mark.parametrize("name", [name for name in zoo.list() if "transformer" not in name])
def test_each_model_of_images_scores_as_its_card_says(name, monkeypatch, tmp_path):
    if not DATA.is_dir():
        pytest.skip("needs the data beside the checkout: ../shared/data")
    monkeypatch.setenv("HF_EFFICIENT_DATA", str(DATA))
    results = json.loads((Path(zoo.path(name)) / "results.json").read_text())
    metric = results["metric_for_best_model"].removeprefix("eval_")
    found = evaluate(zoo.path(name), limit=1000, output=tmp_path / "evaluation.json")
    assert abs(found["metrics"][metric] - results["metrics"][f"test_{metric}"]) < 0.04  # three standard errors


def test_the_detector_is_better_than_boxes_that_look_at_nothing():
    """The whole image (IoU 0.521), and the mean box of the training split (0.439)."""
    if not DATA.is_dir():
        pytest.skip("needs the data beside the checkout: ../shared/data")
    boxes = {}
    for split in ("train", "validation"):
        objects = pq.read_table(DATA / f"tiny_imagenet/{split}-00000-of-00001.parquet", columns=["objects"])["objects"]
        boxes[split] = torch.tensor([x["bbox"][0] for x in objects.to_pylist()])
        boxes[split][:, 2:] += 1  # both ends are inside
    whole, mean = torch.tensor([0.0, 0.0, 64.0, 64.0]), boxes["train"].mean(0)
    ious = [box_iou(boxes["validation"], box[None])[0].mean().item() for box in (whole, mean)]
    assert ious == pytest.approx([0.521, 0.439], abs=5e-4)
    results = json.loads((Path(zoo.path("hugginggreen-vit-detector-tiny-imagenet")) / "results.json").read_text())
    assert results["metrics"]["test_iou"] > max(ious)


def test_all_together_are_small_enough():
    assert sum(file.stat().st_size for file in zoo.FOLDER.rglob("*") if file.is_file()) < 25_000_000
    assert len(described()) == len(zoo.list())


def test_the_command_lists_them(capsys):
    assert main(["zoo", "list"]) == 0
    listed = capsys.readouterr().out
    assert zoo.list() and all(name in listed for name in zoo.list())
    assert main(["zoo", "build", "cat"]) == 1
    assert "There are" in capsys.readouterr().err
