"""Cards: metadata that the Hub takes, figures that the run's files hold, snippets that run, nothing invented."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from hf_efficient import (
    CompressivePerformerConfig,
    CompressivePerformerForCausalLM,
    HuggingGreenViTConfig,
    HuggingGreenViTForImageClassification,
    image_processor_for,
)
from hf_efficient.data.tokenization import build_tokenizer
from hf_efficient.energy.report import Component, EnergyReport, Row
from hf_efficient.model_card import render_card, write_card
from hf_efficient.model_card.card import MARK

VIT = {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
RESULTS = {
    "run": "cifar10_hugginggreen_vit_small",
    "dataset": "cifar10",
    "model": "hugginggreen_vit",
    "metrics": {"eval_loss": 1.25, "eval_accuracy": 0.625, "eval_micro_f1": 0.625, "eval_macro_f1": 0.5, "epoch": 3.0},
    "best_step": 126,
    "metric_for_best_model": "accuracy",
    "steps": 1260,
    "epochs": 3.0,
    "train_seconds": 80.0,
    "parameters": 12345,
    "seed": 7,
    "processes": 1,
    "device": "cpu",
    "threads": 2,
    "versions": {"hf_efficient": "0.1.0", "torch": "2.13.0"},
    "command": "python /home/me/hf/scripts/train_image_classifier.py /home/me/hf/configs/cifar10_small.yaml",
    "date": "2026-11-16T22:55:30+00:00",
    "settings": {
        "dataset": {"name": "cifar10"},
        "model": {"model_type": "hugginggreen_vit"},
        "training": {"num_train_epochs": 3.0, "output_dir": "/home/me/results"},
        "energy": {"country": "DEU"},
    },
}
ENERGY = EnergyReport(
    run="abc",
    rows=(
        Row("train", 1, seconds=20.0, cpu=2000.0, ram=1000.0, items=1000),
        Row("eval", 1, seconds=2.0, cpu=400.0, ram=200.0, items=100),
    ),
    components=(
        Component("cpu", "load", "20 W · load", "machine"),
        Component("ram", "constant", "5 W, guessed", "machine"),
    ),
    tracker="Tracker 1",
    hardware="2 threads of a fake",
    country="DEU",
    location="Germany",
    grams_per_kwh=500.0,
    grid="a table",
    finished=True,
)


def save_classifier(folder: Path, **fields) -> None:
    names = dict(enumerate(["ant", "bee", "cat"]))
    config = HuggingGreenViTConfig(**VIT, intermediate_size=16, top_k=8, num_labels=3, id2label=names, **fields)
    HuggingGreenViTForImageClassification(config).save_pretrained(folder)
    image_processor_for(config).save_pretrained(folder)


def save_language_model(folder: Path) -> None:
    tokenizer = build_tokenizer("byte")
    config = CompressivePerformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_options={"num_features": 8},
        segment_length=16,
        memory_length=16,
        compressed_memory_length=8,
    )
    CompressivePerformerForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    torch.manual_seed(0)
    folders = {name: tmp_path_factory.mktemp(name) for name in ("classifier", "language_model")}
    save_classifier(folders["classifier"])
    save_language_model(folders["language_model"])
    return folders


@pytest.fixture
def folder(weights, tmp_path) -> Path:
    """A classifier's run, complete."""
    return make_run(tmp_path / "run", weights["classifier"])


def make_run(folder: Path, weights: Path, energy: EnergyReport | None = ENERGY, **results) -> Path:
    folder.mkdir()
    for file in weights.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "results.json").write_text(json.dumps({**RESULTS, **results}))
    if energy is not None:
        energy.save(folder / "energy.json")
    return folder


def test_what_the_model_is_made_of(tmp_path):
    """Pooled tokens, the first version's blocks; and no attention where there is none."""
    from hf_efficient import ImageSigConfig, MobileViTv2Config

    texts = {}
    for name, config in {
        "pooled": HuggingGreenViTConfig(num_hidden_layers=4, token_pooling={"after": [1, 3], "keep": 0.7}),
        "first": MobileViTv2Config(block="v1", attention="softmax"),
        "tiny": ImageSigConfig(),
    }.items():
        config.architectures = [type(config).__name__.replace("Config", "ForImageClassification")]
        config.save_pretrained(tmp_path / name)
        texts[name] = write_card(make_run(tmp_path / f"{name}-run", tmp_path / name)).read_text()
    assert "Behind layer 1, 3 70% of the tokens that came go on" in texts["pooled"]
    assert "blocks are those of the first version" in texts["first"] and "attention is `softmax`" in texts["first"]
    assert "ImageSig, Ibrahim & Lyons 2022" in texts["tiny"] and "Its attention is" not in texts["tiny"]


def test_the_metadata_is_what_the_hub_reads(folder):
    data = ModelCard.load(write_card(folder)).data
    assert (data.pipeline_tag, data.library_name, data.license) == (
        "image-classification",
        "transformers",
        "apache-2.0",
    )
    assert data.datasets == ["uoft-cs/cifar10"] and data.metrics == ["accuracy", "f1"]
    assert data.tags == ["hf_efficient", "hugginggreen_vit"]
    assert data.model_name == "run-cifar10"  # its folder, and its data


def test_the_figures_are_those_of_the_results(folder):
    card = render_card(folder)
    found = {(result.metric_type, result.metric_name): result for result in card.data.eval_results}
    values = {name: result.metric_value for (_, name), result in found.items()}
    assert values == {"accuracy": 0.625, "micro-F1": 0.625, "macro-F1": 0.5, "loss": 1.25}
    result = found["f1", "macro-F1"]
    assert result.metric_args == {"average": "macro"}
    assert (result.dataset_type, result.dataset_name, result.dataset_split) == ("uoft-cs/cifar10", "CIFAR-10", "test")
    assert "| macro-F1 | test | 0.5000 |" in card.text


def test_emissions_are_grams(folder):
    emissions = render_card(folder).data.co2_eq_emissions
    assert emissions["emissions"] == pytest.approx(3600 / 3.6e6 * 500)  # 0.5 g, not 0.0005 kg
    assert emissions["training_type"] == "pre-training" and emissions["hardware_used"] == "2 threads of a fake"
    assert emissions["geographical_location"] == "Germany"
    assert "CPU estimated from load, RAM constant, not measured" in emissions["source"]


def test_fine_tuning_is_called_so(weights, tmp_path):
    settings = {**RESULTS["settings"], "model": {"pretrained": "google/vit-base-patch16-224"}}
    data = render_card(make_run(tmp_path / "run", weights["classifier"], settings=settings)).data
    assert data.co2_eq_emissions["training_type"] == "fine-tuning" and data.base_model == "google/vit-base-patch16-224"
    settings["model"] = {"pretrained": "/home/me/encoder"}
    card = render_card(make_run(tmp_path / "2", weights["classifier"], settings=settings))
    assert card.data.base_model is None and "from the weights of `encoder`" in card.text


def test_an_unknown_country_is_not_made_up(weights, tmp_path):
    settings = {name: section for name, section in RESULTS["settings"].items() if name != "energy"}
    energy = replace(ENERGY, country=None, location="country not stated")
    card = render_card(make_run(tmp_path / "run", weights["classifier"], energy, settings=settings))
    assert card.data.get("co2_eq_emissions") is None and "nobody said where the electricity came from" in card.text
    settings["energy"] = {"carbon_intensity": 500.0}
    card = render_card(make_run(tmp_path / "2", weights["classifier"], energy, settings=settings))
    assert card.data.co2_eq_emissions["emissions"] == pytest.approx(0.5)
    assert "geographical_location" not in card.data.co2_eq_emissions


def test_the_text_says_how_it_was_made_and_how_that_is_known(folder):
    text = render_card(folder).text
    assert "HuggingGreenViT for image classification with 12,345 parameters, trained on CIFAR-10." in text
    assert "keep 8 of 16 patches, drawn by variance; evaluation sees all of them." in text
    assert "\npython scripts/train_image_classifier.py configs/cifar10_small.yaml\n" in text
    assert "took 1 Wh in 22 s, 0.5 g CO2e; partly or wholly estimated." in text
    assert "| train | 20 | 3,000 | 3 | 0.4167 |" in text and "CPU 2,400 J, RAM 1,200 J" in text
    assert "CPU estimated from load (20 W · load)" in text
    assert "best accuracy (step 126), on the same images" in text and "with seed 7" in text
    assert "/home/me" not in text and "\n\n\n" not in text


@pytest.mark.parametrize(
    ("folder", "dataset", "given", "name"),
    [
        ("ft1", "/home/me/shapes", None, "ft1-shapes"),
        ("shapes_vit", "/home/me/shapes", None, "shapes_vit"),
        ("tiny_imagenet_vit", "tiny-imagenet", None, "tiny_imagenet_vit"),
        ("ft1", "me/my-shapes", None, "ft1-my-shapes"),
        ("ft1", "shapes", "by_hand", "by_hand"),
        ("wide/seed_1", "mnist", None, "wide-seed_1-mnist"),
        ("ft1", None, None, "ft1"),
    ],
)
def test_it_is_named_after_its_folder_and_data(weights, tmp_path, folder, dataset, given, name):
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    settings = {**RESULTS["settings"], "training": {"run_name": given} if given else {}}
    run = make_run(tmp_path / folder, weights["classifier"], dataset=dataset, settings=settings)
    card = render_card(run)
    assert f"\n# {name}\n" in card.text and f'"{name}"' in card.text
    assert "cifar10_hugginggreen" not in str(card)


def test_pictures_beside_the_card_are_in_it(folder, tmp_path):
    assert "![" not in render_card(folder).text and render_card(folder).data.get("widget") is None
    for name in ("predictions", "confusion", "curves", "example"):
        Image.new("RGB", (4, 4)).save(folder / f"{name}.png")
    card = ModelCard.load(write_card(folder))
    assert re.findall(r"!\[.+\]\((.+)\)", card.text) == ["predictions.png", "confusion.png", "curves.png"]
    assert card.data.widget == [{"src": "example.png", "example_title": "One of its images"}]
    elsewhere = ModelCard.load(write_card(folder, tmp_path / "cards" / "run.md"))
    assert "![" not in elsewhere.text and elsewhere.data.get("widget") is None


def test_texts_to_try_it_with(weights):
    assert render_card(weights["language_model"]).data.widget == [{"text": "The import statement"}]


def test_no_folder_of_the_machine_is_in_it(weights, tmp_path):
    command = "hf-efficient train cifar10 --dataset=/home/me/birds --pretrained ~/encoder --output-dir /home/me/out"
    settings = {
        "dataset": {"name": "/home/me/birds", "image_folder": "/home/me/my photos", "columns": ["/home/me/a", "b/c"]},
        "model": {"pretrained": "/home/me/encoder"},
        "training": {"output_dir": "/home/me/out", "hub_model_id": "me/birds"},
        "energy": {"country": "DEU"},
    }
    changes = {"dataset": "/home/me/birds", "command": command, "settings": settings}
    text = str(render_card(make_run(tmp_path / "run", weights["classifier"], **changes)))
    assert "/home" not in text and "~/" not in text and str(tmp_path) not in text
    assert "hf-efficient train cifar10 --dataset=birds --pretrained encoder\n" in text
    assert "b/c" in text and "me/birds" in text and "github.com" not in text


def test_alarms_are_behind_a_fold(weights, tmp_path):
    energy = replace(ENERGY, alarms={"ram-share": "mostly memory", "unknown": "who knows"})
    text = render_card(make_run(tmp_path / "run", weights["classifier"], energy)).text
    before, fold = text.split("<details><summary>How this is known, and 2 alarms</summary>")
    assert "mostly memory" not in before and "**Alarm**: mostly memory" in fold.partition("</details>")[0]


def test_a_frozen_backbone_dropped_no_patches(weights, tmp_path):
    settings = {**RESULTS["settings"], "model": {"pretrained": "google/vit", "freeze_backbone": True}}
    text = render_card(make_run(tmp_path / "run", weights["classifier"], settings=settings)).text
    assert "Its backbone was frozen: training, like evaluation, saw all patches." in text and "batches" not in text


@pytest.mark.parametrize("missing", ["results.json", "energy.json"])
def test_what_is_missing_is_left_out_and_named(folder, missing):
    (folder / missing).unlink()
    card = render_card(folder)
    assert card.data.pipeline_tag == "image-classification"
    if missing == "results.json":
        assert card.data.eval_results is None and card.data.datasets is None and card.data.metrics is None
        assert "No results were recorded." in card.text and "How it was trained was not recorded." in card.text
    else:
        assert card.data.get("co2_eq_emissions") is None and "The energy of this run was not measured." in card.text
        assert "co2_eq_emissions" not in str(card)


def test_energy_of_another_run_is_left_out(weights, tmp_path):
    folder = make_run(tmp_path / "run", weights["classifier"], energy=ENERGY)
    (folder / "results.json").write_text(json.dumps({**RESULTS, "energy": {"train_kwh": 9.0}}))
    with pytest.warns(UserWarning, match="of another run than results.json"):
        assert render_card(folder).data.get("co2_eq_emissions") is None


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        render_card(tmp_path)


def test_a_path_is_told_by_its_end_only_and_an_unknown_metric_by_its_name(weights, tmp_path):
    settings = {**RESULTS["settings"], "dataset": {"name": "/home/me/my_birds", "limit": 100}}
    changes = {"dataset": "/home/me/my_birds", "settings": settings, "metrics": {"eval_wing_span": 2, "eval_x": None}}
    card = render_card(make_run(tmp_path / "run", weights["classifier"], **changes))
    (result,) = card.data.eval_results
    assert (result.dataset_type, result.metric_name, result.metric_value) == ("my_birds", "wing span", 2)
    assert card.data.datasets is None and result.dataset_args == {"limit": 100}
    assert "limit=100" in card.text and "/home/me" not in card.text


def test_a_part_of_enwik8_is_not_called_enwik8(weights, tmp_path):
    metrics = {"eval_bits_per_byte": 2.5, "test_bits_per_byte": 2.75, "test_loss": 1.9}
    changes = {"dataset": "enwik8", "metrics": metrics, "metric_for_best_model": "bits_per_byte"}
    size = {"bytes": {"train": 3_600_000, "validation": 200_000, "test": 200_000}}
    card = render_card(make_run(tmp_path / "run", weights["language_model"], **changes, **size))
    first, *rest = card.data.eval_results
    assert (first.dataset_type, first.dataset_name) == ("enwik8", "the first 4.0 MB of enwik8")
    assert {(result.dataset_split, result.metric_value) for result in (first, *rest)} == {
        *(("test", 2.75), ("test", 1.9), ("validation", 2.5))
    }
    assert card.data.language == "en" and "on the same images" not in card.text
    whole = render_card(make_run(tmp_path / "2", weights["language_model"], **changes, bytes={"train": 90_000_000}))
    assert whole.data.eval_results[0].dataset_type == "LTCB/enwik8"


def test_a_comparison_says_what_is_worse_and_what_differs(folder, weights, tmp_path):
    rows = (Row("train", 1, seconds=20.0, cpu=1000.0, ram=800.0, items=1000),)
    changes = {"run": "rival", "metrics": {"eval_accuracy": 0.75}, "train_seconds": 40.0, "threads": 1}
    rival = make_run(tmp_path / "rival", weights["classifier"], replace(ENERGY, rows=rows), **changes)
    text = render_card(folder, compare_with=[rival]).text
    assert "| rival-cifar10 | 12,345 | 1,260 | 40 | 0.7500 | 1,800 |" in text
    assert (
        "Against rival-cifar10: accuracy 0.1250 worse, 2.00 of its energy (3,600 J and 1,800 J, so no saving)" in text
    )
    assert ", 2.00 of its time. Besides the model, threads differ." in text
    turned = render_card(rival, compare_with=[folder]).text
    assert "accuracy 0.1250 better, 0.50 of its energy (1,800 J and 3,600 J), 0.50 of its time." in turned


def test_runs_on_other_data_are_not_compared(folder, weights, tmp_path):
    other = make_run(tmp_path / "other", weights["classifier"], dataset="mnist")
    with pytest.raises(ValueError, match=r"on mnist, .* on cifar10: they can't be compared"):
        render_card(folder, compare_with=[other])


def test_what_a_person_wrote_stays(folder):
    file = write_card(folder)
    first = file.read_text()
    assert MARK in first and write_card(folder) == file and file.read_text() == first
    file.write_text("# Mine\n")
    with pytest.warns(UserWarning, match="stays as it is"):
        assert write_card(folder) is None
    assert file.read_text() == "# Mine\n"


def test_models_of_transformers_have_cards_too(tmp_path):
    config = ViTConfig(**VIT, intermediate_size=16, num_labels=3)
    ViTForImageClassification(config).save_pretrained(tmp_path)
    card = render_card(tmp_path)
    assert card.data.pipeline_tag == "image-classification" and card.data.tags == ["vit"]
    assert "trust_remote_code" not in card.text and "transformers' `vit` for image classification" in card.text


def test_the_snippets_run(weights, preloaded, bare, tmp_path):
    """With hf_efficient, and, in a process that can't import it, without."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    with_it, without = [], ["import sys", "sys.modules['hf_efficient'] = None"]
    for kind in ("classifier", "language_model"):
        text = render_card(weights[kind], repo_id=str(weights[kind])).text
        first, second = re.findall(r"```python\n(.*?)```", text, flags=re.S)
        with_it.append(f"exec({first!r}, {{}})")  # each with names of its own
        without.append(f"exec({second!r}, {{}})")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    for done in (
        preloaded.run("-c", "\n".join(with_it), cwd=tmp_path),
        bare.run("-c", "\n".join(without), cwd=tmp_path, env=environment),
    ):
        assert done.returncode == 0, done.stderr
        assert "label" in done.stdout and "The import statement" in done.stdout


ROOT = Path(__file__).parents[1]
PUBLISHED = sorted(file for file in (ROOT / "model_cards").glob("*.md") if file.name != "template.md")


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_published_cards_are_of_configs_that_ran(file):
    """Their figures in the text are those of the metadata, and their settings those of the config."""
    card = ModelCard.load(file)
    settings = yaml.safe_load((ROOT / "configs" / f"{file.stem}.yaml").read_text())
    settings = json.loads(json.dumps(settings))  # as results.json has them, whose keys are strings
    run = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card.text, re.S)[1])
    settings["training"].pop("budget", None)  # where runs are compared, it has become max_steps
    assert (
        settings["model"].items() <= run["model"].items() and settings["training"].items() <= run["training"].items()
    )
    emissions = getattr(card.data, "co2_eq_emissions", None)  # known where the country is
    assert card.data.pipeline_tag and bool(emissions) == ("country" in run.get("energy", {}))
    assert all(f"| {result.metric_value:.4f} |" in card.text for result in card.data.eval_results)
