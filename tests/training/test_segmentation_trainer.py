"""Segmentation from a folder of masks to its pipeline: trained, resumed, evaluated, drawn."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from transformers import pipeline

from hf_efficient.inference import predict
from hf_efficient.onnx_export import export_onnx
from hf_efficient.training.evaluation import evaluate
from hf_efficient.training.tasks import image_segmentation, train

MODEL = {
    "model_type": "mobilevit_v2",
    **{"image_size": [32, 64], "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "output_stride": 8},
    **{"aspp_out_channels": 16, "atrous_rates": [1, 2, 3], "psp_out_channels": 16},
}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("hf_efficient.training.trainer.draw_curves", lambda *_: None)
    monkeypatch.setattr("hf_efficient.training.checkpoints.force_to_disk", lambda _: None)


def write_scenes(folder: str = "scenes") -> None:
    """Images of mixed sizes: sky above, ground below, the horizon somewhere; the right edge is not labelled."""
    for split, count in (("train", 12), ("val", 5), ("test", 4)):
        for name in ("images", "masks"):
            (Path(folder) / split / name).mkdir(parents=True)
        for i in range(count):
            width, height = 64 + 8 * (i % 2), 40
            horizon = 10 + 20 * i // count
            pixels = np.full((height, width, 3), (60, 120, 220), np.uint8)
            pixels[horizon:] = (120, 90, 40)
            classes = (np.arange(height)[:, None] >= horizon).repeat(width, 1).astype(np.uint8)
            classes[:, -4:] = 255
            Image.fromarray(pixels).save(Path(folder) / split / "images" / f"{i}.png")
            Image.fromarray(classes).save(Path(folder) / split / "masks" / f"{i}.png")


def write_run(name: str, head: str = "deeplabv3", **training) -> str:
    quick = {"max_steps": 12, "per_device_train_batch_size": 6, "learning_rate": 1e-2, "eval_strategy": "no"}
    sections = {
        "task": "image-segmentation",
        "dataset": {"name": "scenes", "class_names": ["sky", "ground"]},
        "model": {**MODEL, "segmentation_head": head},
        "augmentation": {"flip": True, "resized_crop": 0.5},
        "training": {**quick, **training},
        "energy": {"enabled": False},
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(sections))
    return f"{name}.yaml"


@pytest.mark.parametrize("head", ["deeplabv3", "pspnet"])
def test_from_a_folder_of_masks_to_the_pipeline(head):
    write_scenes()
    results = train(write_run("dense", head))
    metrics = results["metrics"]
    assert metrics["test_mean_iou"] > 0.6 and metrics["eval_pixel_accuracy"] > 0.75
    assert set(results["iou_by_class"]) == {"sky", "ground"} and Path("results/dense/predictions.png").is_file()
    for split, prefix, samples in (("validation", "eval", 5), ("test", "test", 4)):
        again = evaluate("results/dense", split=split, batch_size=3)
        assert again["samples"] == samples and again["task"] == "image-segmentation"
        for name in ("mean_iou", "pixel_accuracy", "mean_accuracy"):
            assert again["metrics"][name] == pytest.approx(metrics[f"{prefix}_{name}"], abs=1e-6)
    image = Image.open("scenes/test/images/1.png")
    found = pipeline("image-segmentation", model="results/dense")(image)
    assert {row["label"] for row in found} <= {"sky", "ground"}
    assert all(row["mask"].size == image.size == (72, 40) for row in found)
    whole = np.sum([np.asarray(row["mask"]) == 255 for row in found], axis=0)
    assert (whole == 1).all()
    (record,) = predict("results/dense", ["scenes/test/images/1.png"])
    assert record["task"] == "image-segmentation" and len(record["predictions"]) == len(found)
    assert "segmentation" in Path("results/dense/README.md").read_text()


def test_a_model_of_transformers_is_trained_alike():
    write_scenes()
    sections = yaml.safe_load(Path(write_run("theirs", max_steps=2)).read_text())
    sizes = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}
    sections["model"] = {"model_type": "segformer", **sizes, "decoder_hidden_size": 8}
    sections["dataset"]["image_size"] = [32, 64]  # of which its config knows nothing
    Path("theirs.yaml").write_text(yaml.safe_dump(sections))
    assert 0 <= train("theirs.yaml")["metrics"]["eval_mean_iou"] <= 1


def test_a_resumed_run_ends_as_the_other():
    write_scenes()
    options = {"max_steps": 6, "save_steps": 3, "lr_scheduler_type": "constant"}
    whole, file = train(write_run("whole", **options)), write_run("parts", **options)
    train(file, ["--max_steps", "3"])
    parts = train(file)
    assert parts["metrics"] == whole["metrics"]


def test_ignored_pixels_don_t_count_in_accumulated_losses():
    """The loss of a batch in parts is that of the whole, though parts have other shares of ignored pixels."""
    write_scenes()
    trainer, _ = image_segmentation.prepare([write_run("dense")])
    batch = trainer.train_dataset.__getitems__([0, 1, 2])
    batch["labels"][0, :20] = 255
    parts = [{name: value[i : i + 1] for name, value in batch.items()} for i in range(3)]
    counted = trainer._get_num_items_in_batch(parts, torch.device("cpu"))
    assert counted == (batch["labels"] != 255).sum()
    model = trainer.model.eval()
    with torch.no_grad():
        losses = sum(model(**part, num_items_in_batch=counted).loss for part in parts)
        assert losses.item() == pytest.approx(model(**batch).loss.item(), rel=1e-4)


def test_export(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime comes with the extra export")
    write_scenes()
    train(write_run("dense", "pspnet", max_steps=1))
    done = export_onnx("results/dense", "dense.onnx")
    assert done.input_shape == (3, 32, 64) and done.difference < 1e-3
