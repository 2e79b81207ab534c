"""The scripts for stages, detection and evaluation, from the command line to the files they write."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from hf_efficient.data.image_sets import ImageSet, ImageSplits
from hf_efficient.training.errors import RunError
from hf_efficient.training.run import load_run

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
MODEL = {
    "model_type": "hugginggreen_vit",
    **{"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}
QUICK = {"num_train_epochs": 1, "per_device_train_batch_size": 20, "learning_rate": 3e-3}
STAGES = {
    "masked": {"training": {"objective": "masked"}},
    "contrastive": {"training": {"objective": "contrastive", "images_per_class": 4}},
    "finetune": {"model": {"freeze_backbone": True}},
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_efficient.training.trainer.draw_curves", lambda *_: None)
    monkeypatch.setattr("hf_efficient.training.checkpoints.force_to_disk", lambda _: None)


def write(name: str, **sections) -> str:
    sections = {
        "dataset": {"name": "digits", "limit": 200, "evaluation_limit": 60},
        "energy": {"enabled": False},
        **sections,
        "model": {**MODEL, **sections.get("model", {})},
        "training": {**QUICK, **sections.get("training", {})},
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(sections))
    return f"{name}.yaml"


def test_three_stages_are_one_command(capsys):
    from train_in_stages import main

    files = [write(name, **sections) for name, sections in STAGES.items()]
    results = main([*files, "--output_dir", "out", "--seed", "3"])
    assert [result["seed"] for result in results] == [3, 3, 3]
    for before, name in (("masked", "contrastive"), ("contrastive", "finetune")):
        given = yaml.safe_load(Path(f"out/{name}/run.yaml").read_text())
        assert given["model"]["pretrained"] == f"out/{before}"
    from safetensors.torch import load_file

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
            {"training": {"objective": "contrastive", "images_per_class": 4, "per_device_train_batch_size": 80}},
            "are 10",
        ),
        ({"training": {"objective": "contrastive", "images_per_class": 8, "per_device_train_batch_size": 16}}, "only"),
        ({"training": {"objective": "masked"}, "augmentation": {"mixup": 0.2}}, "without mixup"),
        ({"training": {"objective": "mask"}}, "must be one of masked, contrastive"),
    ],
)
def test_what_a_stage_cannot_do_is_told(changes, message):
    from pretrain_image_encoder import main

    with pytest.raises(RunError, match=message):
        main([write("wrong", **changes)])


def test_stages_must_have_names_of_their_own():
    from train_in_stages import main

    with pytest.raises(RunError, match="different names"):
        main(["a/x.yaml", "b/x.yaml"])


def boxed(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 255, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageSet(
        pixels, torch.arange(count) % 2, ["cat", "dog"], torch.rand(count, 4, generator=generator) / 2 + 0.2
    )


def test_a_detector_is_trained_and_evaluated(monkeypatch):
    import evaluate_model
    import train_object_detector

    for module in (train_object_detector, evaluate_model):
        monkeypatch.setattr(module, "load_images", lambda *_, **__: ImageSplits(boxed(40), boxed(12)))
    file = write("objects", dataset={"name": "made up"}, model={"num_queries": 1})
    results = train_object_detector.main([file])
    again = evaluate_model.main(["results/objects", "made up", "--batch_size", "5"])
    assert again["task"] == "object-detection" and again["samples"] == 12
    for name in ("map", "iou"):
        assert again["metrics"][name] == pytest.approx(results["metrics"][f"eval_{name}"], abs=1e-6)


def test_a_classifier_is_evaluated_as_it_was_in_training(capsys):
    from evaluate_model import main
    from train_image_classifier import main as train

    results = train([write("digits")])
    found = main(["results/digits", "digits", "--limit", "60", "--output", "scores.json"])
    assert found == json.loads(Path("scores.json").read_text())
    assert found["metrics"]["accuracy"] == results["metrics"]["eval_accuracy"]
    assert "accuracy" in capsys.readouterr().out
    with pytest.raises(RunError, match="unknown images 'nothing'"):
        main(["results/digits", "nothing"])
    with pytest.raises(RunError, match="holds HuggingGreenViTForMaskedImageModeling: give --task"):
        from pretrain_image_encoder import main as pretrain

        pretrain([write("masked", **STAGES["masked"])])
        main(["results/masked", "digits"])


def test_labels_are_numbered_as_the_model_does():
    from evaluate_model import with_labels_of

    from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification

    fields = {**MODEL, "id2label": {0: "dog", 1: "cat"}, "label2id": {"dog": 0, "cat": 1}}
    fields.pop("model_type")
    model = HuggingGreenViTForImageClassification(HuggingGreenViTConfig(**fields))
    assert with_labels_of(model, boxed(4)).labels.tolist() == [1, 0, 1, 0]
    model.config.id2label = {0: "dog", 1: "fox"}
    with pytest.raises(RunError, match="does not know 1 of the dataset's classes, as 'cat'"):
        with_labels_of(model, boxed(4))


def test_a_language_model_is_evaluated_as_it_was_in_training():
    from evaluate_model import main
    from train_language_model import main as train

    fields = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "segment_length": 32}
    model = {**fields, "memory_length": 32, "compressed_memory_length": 0, "model_type": "compressive_performer"}
    sections = {
        "dataset": {"name": "pydocs", "preset": "standard", "limit": 20000},
        "model": model,
        "training": {"max_steps": 2, "per_device_train_batch_size": 4},
        "energy": {"enabled": False},
    }
    Path("bytes.yaml").write_text(yaml.safe_dump(sections))
    results = train(["bytes.yaml"])
    found = main(["results/bytes", "pydocs", "--limit", "20000"])
    assert found["metrics"]["bits_per_byte"] == pytest.approx(results["metrics"]["test_bits_per_byte"], rel=1e-6)


def test_the_library_evaluate_is_found_beside_the_script_of_that_name():
    run = subprocess.run(
        [sys.executable, "-c", "import evaluate; print(evaluate.Metric)"],
        capture_output=True,
        text=True,
        cwd=ROOT / "scripts",
    )
    assert run.stdout.strip() == "<class 'evaluate.module.Metric'>", run.stderr
    run = subprocess.run([sys.executable, ROOT / "scripts/evaluate.py", "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "--trust_remote_code" in run.stdout, run.stderr


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_loads_with_its_script(file, monkeypatch):
    from train_in_stages import script_for

    module = importlib.import_module(script_for(file))
    loaded = []
    monkeypatch.setattr(module, "load_run", lambda *args: loaded.append(load_run(*args)) or sys.exit())
    with pytest.raises(SystemExit):
        module.main([str(file)])
    assert loaded[0].name == file.stem
