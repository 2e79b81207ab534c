"""Converted, distilled or not, fine-tuned: from data and a model on disk to the report."""

import json

import pytest
import torch
from datasets import ClassLabel, Dataset
from transformers import BertConfig, BertForSequenceClassification

from hf_efficient.data.tokenization import build_tokenizer
from hf_efficient.errors import CommandError
from hf_efficient.experiments import converted_attention
from hf_efficient.experiments.converted_attention import compare_conversions


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A tiny model and phrases whose label is a word."""
    tokenizer = build_tokenizer("byte", padding=True)
    tokenizer.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    for split, number in (("train", 40), ("validation", 64)):
        phrases = [f"{'a good film' if i % 2 else 'bad'} {'!' * (i % 5)}" for i in range(number)]
        rows = Dataset.from_dict({"text": phrases, "label": [i % 2 for i in range(number)]})
        rows = rows.cast_column("label", ClassLabel(names=["negative", "positive"]))
        (tmp_path / "data/sst2").mkdir(parents=True, exist_ok=True)
        rows.to_parquet(tmp_path / f"data/sst2/{split}-00000-of-00001.parquet")
    monkeypatch.setenv("HF_EFFICIENT_DATA", str(tmp_path / "data"))
    return tmp_path


def test_from_a_folder_to_the_report(world, monkeypatch):
    arguments = {"model": str(world / "model"), "num_examples": 32, "batch_size": 8, "distil_steps": 6}
    record = compare_conversions(["linear_elu"], output_dir=world / "runs", **arguments)
    assert record == json.loads((world / "runs/report.json").read_text())
    assert list(record["runs"]) == ["softmax", "linear_elu", "linear_elu_distilled"]
    assert record["validation_examples"] == 64
    plain, distilled = record["runs"]["linear_elu"], record["runs"]["linear_elu_distilled"]
    assert plain["errors_converted"] == distilled["errors_converted"]
    assert len(distilled["errors_distilled"]) == 2
    assert all(0 <= run["accuracy"] <= 1 for run in record["runs"].values())

    asked = []
    monkeypatch.setattr(converted_attention, "run", lambda *a: asked.append(a[3:5]) or {"accuracy": 0.5})
    again = compare_conversions(["linear_elu"], output_dir=world / "runs", **arguments)
    assert again["runs"] == record["runs"] and not asked, "what finished is not run again"
    compare_conversions(["linear_elu"], output_dir=world / "runs", **{**arguments, "distil_steps": 7})
    assert asked == [("linear_elu", 7)]


def test_too_many_examples_are_refused(world):
    with pytest.raises(CommandError, match="num_examples=41 must lie between 1 and 40"):
        compare_conversions(["linear_elu"], model=str(world / "model"), num_examples=41, output_dir=world / "runs")
