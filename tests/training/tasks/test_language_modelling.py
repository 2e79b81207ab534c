"""Training a language model: from a YAML to a folder that pipeline() takes."""

import json
from pathlib import Path

import pytest
import yaml
from transformers import pipeline

from hf_efficient.data.text import SHARES
from hf_efficient.data.text_streams import TextOptions
from hf_efficient.training.errors import RunError
from hf_efficient.training.run import load_run
from hf_efficient.training.run_file import read_file
from hf_efficient.training.tasks import language_modelling

CONFIGS = Path(__file__).parents[3] / "configs"
OURS = {
    "model_type": "compressive_performer",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "segment_length": 16,
    "memory_length": 16,
    "compressed_memory_length": 8,
    "compression_rate": 4,
}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
TRAINING = {
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "disable_tqdm": True,
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(language_modelling, "CONTINUATION", 8)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"The line after {i} is {i + 1}, und der Käse {i % 7}." for i in range(400)))

    def train(model, *words, **dataset):
        sections = {"dataset": {"name": str(text), **dataset}, "model": model, "energy": {"enabled": False}}
        sections["training"] = {**TRAINING, "output_dir": str(tmp_path / "out")}
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(sections))
        return language_modelling.main([str(file), *words]), tmp_path / "out"

    return train


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        (OURS, {"level": "byte"}),
        (OURS, {"level": "bpe", "vocab_size": 300, "order": "random", "segments_per_crop": 2}),
        (OURS, {"level": "word", "min_count": 2, "preset": "standard"}),
        (GPT2, {"level": "byte", "document_start": "The line"}),
    ],
    ids=["bytes", "bpe, random", "words", "gpt2, documents"],
)
def test_a_run_ends_with_a_model_that_writes(train, capsys, caplog, model, dataset):
    results, folder = train(model, "--early_stopping_patience", "9", **dataset)
    printed = capsys.readouterr().out
    assert "early stopping" not in caplog.text, "of the test split"
    metrics = results["metrics"]
    assert 0 < metrics["test_bits_per_byte"] <= metrics["test_bits_per_character"]
    assert results["metric_for_best_model"] == "bits_per_byte"
    assert results["best_metric"] == metrics["eval_bits_per_byte"]
    assert json.loads((folder / "results.json").read_text())["metrics"] == metrics
    assert ("of its tokens unknown" in printed) == (dataset["level"] == "word") == (results["unknown_rate"] > 0)
    assert "goes on" in printed
    write = pipeline("text-generation", str(folder))
    (found,) = write("The line", max_new_tokens=3, do_sample=False)
    assert found["generated_text"].startswith("The line")
    prompt = "The line  after, und\nThe"[: 13 if model is GPT2 else None]  # spaces are kept, at all levels
    (found,) = write(prompt, max_new_tokens=3, do_sample=False)
    ids = write.tokenizer(prompt, return_tensors="pt")
    whole = write.model.generate(**ids, max_new_tokens=3, do_sample=False)[0]
    assert found["generated_text"] == write.tokenizer.decode(whole, skip_special_tokens=True)
    assert found["generated_text"].startswith(prompt)


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        (OURS, {"name": "nothing"}, "dataset: unknown texts 'nothing': there are enwik8, pydocs"),
        (OURS, {"level": "letter"}, "dataset: level='letter' must be one of"),
        (OURS, {"levl": "byte"}, "dataset.levl is unknown; did you mean level?"),
        (OURS, {"limit": 60}, "dataset: a text of .* tokens is too short for 4 streams"),
        ({**OURS, "vocab_size": 100}, {}, "model.vocab_size=100, but the tokenizer has 256 tokens"),
        (GPT2, {"segment_length": 17}, "dataset.segment_length=17 is more than the 16 positions"),
    ],
)
def test_what_is_wrong_is_said(train, model, dataset, message):
    with pytest.raises(RunError, match=message):
        train(model, **dataset)


LANGUAGE_CONFIGS = [*sorted(CONFIGS.glob("enwik8_*.yaml")), CONFIGS / "pydocs_compressive_performer.yaml"]
SYSTEMS = ("compressive_performer", "compressive_transformer", "performer", "transformer_xl")
LEVELS = {"char": ("byte", (90, 5, 5)), "bpe": ("bpe", (90, 5, 5)), "word": ("word", (80, 10, 10))}


def load(name):
    return load_run([str(CONFIGS / f"{name}.yaml")], "", {"dataset": TextOptions}, language_modelling.DEFAULTS)


def level_of(name):
    """The last word of a name, or the last but one of a small run: "byte" where it is no level."""
    return LEVELS.get(name.removesuffix("_small").rpartition("_")[2], ("byte",))[0]


@pytest.mark.parametrize("file", LANGUAGE_CONFIGS, ids=lambda file: file.stem)
def test_configs_load(file):
    run = load(file.stem)
    assert TextOptions(**run.dataset).level == level_of(file.stem)
    assert run.training.greater_is_better is False


@pytest.mark.parametrize("small", ["", "_small"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_papers_systems_at_its_three_levels(system, level, small):
    """Its splits, and a schedule that acts: there are enough evaluations for a plateau, and to stop early after it."""
    run, base = load(f"enwik8_{system}_{level}{small}"), load(f"enwik8_{system}{small}")
    name, shares = LEVELS[level]
    options, training = TextOptions(**run.dataset), run.training
    assert (options.level, options.preset, SHARES[name]) == (name, "paper", shares)
    expected = {**base.model, "reversible": True} | ({} if level == "char" or not small else {"ngrams": 0})
    assert expected == {**run.model, "reversible": True}
    assert run.model.get("reversible", False) == (system == "performer")
    assert training.lr_scheduler_type == "reduce_lr_on_plateau" and training.lr_scheduler_kwargs["factor"] == 0.5
    steps = training.max_steps if not small else 1.0
    evaluations = round(steps / training.eval_steps)
    waits = training.lr_scheduler_kwargs["patience"] + 1
    assert training.eval_strategy == "steps" and evaluations > 3 * waits
    if level == "char":  # "character level models had not implemented early stopping"
        assert training.early_stopping_patience is None
    else:
        assert waits < training.early_stopping_patience < evaluations
    if not small:
        assert (training.per_device_train_batch_size, training.lr_scheduler_kwargs["patience"]) == (16, 5)
        assert (run.model["segment_length"], run.model["num_hidden_layers"]) == (768, 6)


HOW = ("order", "segments_per_crop", "segment_length", "length_schedule", "per_device_train_batch_size")


@pytest.mark.parametrize(
    ("kind", "count"), [("small", 7), ("hour", 4), ("char_small", 4), ("bpe_small", 4), ("word_small", 4)]
)
def test_configs_of_one_kind_have_the_same_budget(kind, count):
    """So that their figures may stand side by side: all but the way in which the same text is read."""
    files = CONFIGS.glob(f"enwik8_*_{kind}.yaml")
    if kind == "small":  # those without a level, on raw bytes
        files = (file for file in files if not file.stem.endswith(tuple(f"_{level}_small" for level in LEVELS)))
    runs = [read_file(str(file)) for file in files]
    rest = [
        {name: {key: x for key, x in run[name].items() if key not in HOW} for name in ("dataset", "training")}
        for run in runs
    ]
    assert len(runs) == count and all(found == rest[0] for found in rest)
    for run in runs:
        length = run["dataset"].get("segment_length") or run["model"].get("segment_length", 128)
        assert run["training"]["per_device_train_batch_size"] * length == 2048  # tokens of a step
