"""A model is evaluated as it was in training."""

import json
from pathlib import Path

import pytest
import yaml
from task_runs import MODEL, STAGES, boxed, write, write_coco
from transformers import pipeline

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification
from hf_efficient.errors import CommandError
from hf_efficient.training.errors import RunError
from hf_efficient.training.evaluation import evaluate, with_labels_of
from hf_efficient.training.tasks import object_detection, train


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path, quickly):
    monkeypatch.chdir(tmp_path)


def test_a_detector_is_trained_and_evaluated(capsys):
    """From COCO's files, with images of mixed sizes, with many objects, with none, and with one that is no box."""
    for split, count in (("train", 12), ("valid", 5), ("test", 6)):
        write_coco(Path("cells") / split, count, spoilt=split == "train")
    file = write("objects", dataset={"name": "cells", "skip_corrupt": True}, model={"num_queries": 12})
    results = object_detection.main([file])
    assert results["train_samples"] == 12 and results["skipped"]["count"] == 1
    assert (
        "has no area" in results["skipped"]["first"][0] and "1 rows or objects are left out" in capsys.readouterr().out
    )
    assert "1 rows or objects were left out" in Path("results/objects/README.md").read_text()
    for split, prefix, samples in (("validation", "eval", 5), ("test", "test", 6)):
        again = evaluate("results/objects", batch_size=5, split=split)
        assert again["task"] == "object-detection" and again["samples"] == samples
        for name in ("map", "iou"):
            assert again["metrics"][name] == pytest.approx(results["metrics"][f"{prefix}_{name}"], abs=1e-6)
    detector = pipeline("object-detection", model="results/objects", threshold=0.0)
    assert len(detector(str(Path("cells/test/images/3.png").resolve()))) == 12


def test_a_classifier_is_evaluated_as_it_was_in_training(capsys):
    data = {"name": "digits", "limit": 200, "evaluation_limit": 60, "validation": 40}
    scores = train(write("digits", task="image-classification", dataset=data))["metrics"]
    found = evaluate("results/digits", output=Path("scores.json"))
    assert found == json.loads(Path("scores.json").read_text())
    assert found["metrics"]["accuracy"] == scores["test_accuracy"] and found["samples"] == 60
    held_out = evaluate("results/digits", split="validation")
    assert held_out["metrics"]["accuracy"] == scores["eval_accuracy"] and held_out["samples"] == 40
    assert evaluate("results/digits", "digits", limit=30)["samples"] == 30
    Path("results/digits/results.json").unlink()
    with pytest.raises(RunError, match="held out no training images"):
        evaluate("results/digits", "digits", split="validation")
    assert "accuracy" in capsys.readouterr().out
    with pytest.raises(RunError, match="unknown images 'nothing'"):
        evaluate("results/digits", "nothing")
    train(write("masked", **STAGES["masked"]))
    with pytest.raises(CommandError, match="holds HuggingGreenViTForMaskedImageModeling: give --task"):
        evaluate("results/masked", "digits")


def test_labels_are_numbered_as_the_model_does():
    fields = {**MODEL, "id2label": {0: "dog", 1: "cat"}, "label2id": {"dog": 0, "cat": 1}}
    fields.pop("model_type")
    model = HuggingGreenViTForImageClassification(HuggingGreenViTConfig(**fields))
    assert with_labels_of(model, boxed(4)).labels.classes.tolist() == [1, 0, 1, 0]
    model.config.id2label = {0: "dog", 1: "fox"}
    with pytest.raises(RunError, match="does not know 1 of the dataset's classes, as 'cat'"):
        with_labels_of(model, boxed(4))


def test_a_language_model_is_evaluated_as_it_was_in_training(recwarn, capsys):
    fields = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "segment_length": 32}
    model = {**fields, "memory_length": 32, "compressed_memory_length": 0, "model_type": "compressive_performer"}
    sections = {
        "task": "text-generation",
        "dataset": {"name": "pydocs", "level": "word", "limit": 60000, "segment_length": 16},
        "model": model,
        "training": {"max_steps": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 3},
        "energy": {"enabled": False},
    }
    Path("words.yaml").write_text(yaml.safe_dump(sections))
    expected = train("words.yaml")["metrics"]
    recwarn.clear()
    for split, name in (("test", "test_bits_per_byte"), ("validation", "eval_bits_per_byte")):
        for dataset in (None, "pydocs"):
            found = evaluate("results/words", dataset, split=split)
            assert found["dataset"] == "pydocs" and found["metrics"]["bits_per_byte"] == expected[name]
            assert f"{found['unknown_rate']:.2%}" in capsys.readouterr().out and found["unknown_rate"] > 0
    assert not [each for each in recwarn if issubclass(each.category, UserWarning) and "instead" in str(each.message)]
    with pytest.warns(UserWarning, match="read 3 streams of its text at once instead of 2"):
        evaluate("results/words", batch_size=2)
    with pytest.warns(UserWarning, match="trained with level=word instead of byte, limit=60000 instead of 50000"):
        evaluate("results/words", level="byte", limit=50000)
    Path("results/words/results.json").unlink()
    with pytest.raises(RunError, match="no dataset is given"):
        evaluate("results/words")
