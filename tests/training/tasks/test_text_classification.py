"""Training a classifier of texts: its result in pipeline(), killed and resumed, bad input, pairs, other models."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from runs import KillAt, Killed, assert_same, outcome
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForMaskedLM, pipeline

from hf_efficient import KerformerTextForSequencePairClassification
from hf_efficient.cli import main as command_line
from hf_efficient.data.classifier_tokenizer import classifier_tokenizer
from hf_efficient.training.configs import find_config
from hf_efficient.training.errors import RunError
from hf_efficient.training.evaluation import evaluate
from hf_efficient.training.run import load_run
from hf_efficient.training.tasks.text_classification import SECTIONS, TASK, main, prepare

pytestmark = [pytest.mark.usefixtures("quickly"), pytest.mark.filterwarnings("ignore::UserWarning")]
KERFORMER = {
    **{"model_type": "kerformer_text", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"intermediate_size": 16, "max_position_embeddings": 32},
}
BERT, ROBERTA = ({**KERFORMER, "model_type": name} for name in ("bert", "roberta"))
DISTILBERT = {"model_type": "distilbert", "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
TRAINING = {
    **{"max_steps": 9, "per_device_train_batch_size": 8, "eval_strategy": "steps", "eval_steps": 4},
    **{"logging_steps": 1, "learning_rate": 0.01, "disable_tqdm": True},
}


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory, monkeypatch):
    import datasets

    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(folder / "cache"))


@pytest.fixture
def texts(tmp_path):
    """A file of 80 texts of 3 to 25 characters: those with a "z" are bad."""
    words = ["a", "film", "to", "see", "again", "and", "then", "once", "more"]
    rows = []
    for i in range(80):
        said = " ".join(words[(i * 7 + j) % 9] for j in range(1 + i % 5))
        rows.append({"review": said + " zzz" * (i % 2), "mood": ["good", "bad"][i % 2]})
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def config(tmp_path, texts):
    def write(run="run", model=KERFORMER, training=None, task="text-classification", **dataset):
        data = {"name": str(texts), "label_column": "mood", "validation": 20, **dataset}
        given = {"output_dir": str(tmp_path / run), **TRAINING, **(training or {})}
        sections = {"task": task, "dataset": data, "model": model, "training": given, "energy": {"enabled": False}}
        file = tmp_path / f"{run}.yaml"
        file.write_text(yaml.safe_dump(sections))
        return str(file)

    return write


@pytest.mark.parametrize(("model", "level"), [(KERFORMER, "byte"), (BERT, "word"), (DISTILBERT, "bpe")])
def test_a_result_is_complete_and_predicts_in_a_pipeline(config, tmp_path, model, level):
    results = main([config(model=model, level=level, vocab_size=300)])
    folder = tmp_path / "run"
    assert json.loads((folder / "results.json").read_text()) == results
    for file in ("history.csv", "run.yaml", "config.json", "model.safetensors", "tokenizer.json", "README.md"):
        assert (folder / file).is_file(), file
    assert "pipeline_tag: text-classification" in (folder / "README.md").read_text()
    (trainer, _) = prepare([config(model=model, level=level, vocab_size=300)])
    held_out = trainer.eval_dataset.texts
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    found = [row["label"] for row in classify(held_out.rows["text"][:], batch_size=5)]
    right = [held_out.class_names[i] for i in held_out.labels]
    accuracy = sum(a == b for a, b in zip(found, right, strict=True)) / len(right)
    assert accuracy == pytest.approx(results["metrics"]["eval_accuracy"])
    assert set(right) == {"bad", "good"} and results["metrics"].keys() >= {"eval_macro_f1", "eval_loss"}
    scores = evaluate(str(folder))
    assert scores["metrics"]["accuracy"] == results["metrics"]["eval_accuracy"] and scores["samples"] == 20


def test_padding_changes_no_result(config):
    trainer, _ = prepare([config()])
    model, batches = trainer.model.eval(), trainer.eval_dataset
    with torch.no_grad():
        whole = batches.__getitems__(range(20))
        labels = whole.pop("labels")
        together = model(**whole).logits
        alone = torch.cat([model(batches[i]["input_ids"][None]).logits for i in range(20)])
    assert "attention_mask" in whole and len(labels) == 20
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("step", [3, 6])
def test_killed_and_started_again(config, step):
    """In the middle of an epoch of bucketed batches; one epoch has 7 steps."""
    whole, _ = prepare([config("whole")])
    whole.train(resume_from_checkpoint=True)
    killed, _ = prepare([config("killed")])
    killed.add_callback(KillAt(step))
    with pytest.raises(Killed):
        killed.train(resume_from_checkpoint=True)
    again, _ = prepare([config("killed")])
    again.train(resume_from_checkpoint=True)
    assert_same(outcome(again), outcome(whole))


def test_it_learns_with_muon(config):
    training = {"optim": "muon", "learning_rate": 0.02, "eval_strategy": "no", "max_steps": 60}
    assert main([config(training=training)])["metrics"]["eval_accuracy"] > 0.9


def test_a_budget(config):
    results = main([config(training={"budget": "1s", "max_steps": -1, "eval_strategy": "no"})])
    assert results["budget"]["steps"] == results["steps"] > 0


def test_the_test_split_is_looked_at_once(config, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = (tmp_path / "texts.jsonl").read_text().splitlines()
    for name, part in (("train", rows[:60]), ("test", rows[60:])):
        (folder / f"{name}.jsonl").write_text("\n".join(part))
    results = main([config(validation=10)])
    assert "test_accuracy" not in results["metrics"]
    results = main([config("second"), "--dataset", str(folder)])
    assert "test_accuracy" in results["metrics"] and results["train_samples"] == 40
    scores = evaluate(str(tmp_path / "second"))
    assert scores["metrics"]["accuracy"] == results["metrics"]["test_accuracy"]
    scores = evaluate(str(tmp_path / "second"), split="validation")
    assert scores["metrics"]["accuracy"] == results["metrics"]["eval_accuracy"]


# Texts that are too long


def test_long_texts_are_cut_and_it_is_said(config, tmp_path, capsys):
    results = main([config(max_length=10, training={"max_steps": 1})])
    found = results["cut_texts"]
    assert found["train"]["cut"] > 20 and found["train"]["texts"] == 60 and found["train"]["max_length"] == 10
    assert found["validation"]["longest"] > 10
    said = capsys.readouterr().out
    assert f"cut: {found['train']['cut']} of 60 texts (train" in said and "cut texts" in said
    assert "It read only the first 10 tokens of long texts" in (tmp_path / "run" / "README.md").read_text()
    assert evaluate(str(tmp_path / "run"))["cut_texts"] == found["validation"]
    assert "are longer than 10 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            {"max_length": 10, "long_texts": "refuse"},
            r"dataset: \d+ of 60 texts \(train\) are longer than 10 tokens, up",
        ),
        ({"max_length": 33}, "dataset: max_length=33 is more than the 32 positions of the model"),
        ({"long_texts": "shorten"}, "dataset: long_texts='shorten' must be one of cut, refuse"),
        ({"label_column": "moood"}, "dataset: label_column='moood': .* has the columns review, mood"),
        ({"text_colum": "review"}, "dataset.text_colum is unknown; did you mean text_column"),
        ({"tokenizer": "nowhere"}, "dataset.tokenizer='nowhere'"),
        ({"level": "bpe", "vocab_size": 3}, "dataset: vocab_size=3 must be at least 256"),
    ],
)
def test_bad_data_is_named(config, dataset, message):
    with pytest.raises(RunError, match=message):
        prepare([config(**dataset)])


def test_made_texts_are_never_cut(config):
    small = {"name": "listops", "label_column": None, "limit": 40, "options": {"shortest": 20, "longest": 40}}
    with pytest.raises(RunError, match=r"and listops can't be cut: set model.max_position_embeddings to \d+ or more"):
        prepare([config(**small)])
    trainer, _ = prepare([config(**small, model={**KERFORMER, "max_position_embeddings": 40})])
    assert trainer.model.config.num_labels == 10 and len(trainer.processing_class) == 17  # with <unk> and <pad>
    assert len(trainer.train_dataset) == 20 and len(trainer.test_dataset) == 40


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("window", "model: .*attention='window' needs a grid of patches, which a text is not.* fit: .*kerformer"),
        ("fnet", "model: .*attention='fnet' can't leave padding out"),
    ],
)
def test_mechanisms_that_do_not_fit_are_named(config, attention, message):
    with pytest.raises(RunError, match=message):
        prepare([config(model={**KERFORMER, "attention": attention})])


def test_schedules_of_other_tasks_are_refused(config):
    with pytest.raises(RunError, match=r"training.length_schedule is for language models"):
        prepare([config(training={"length_schedule": {0: 8}})])
    with pytest.raises(RunError, match=r"is a run of image-classification, not of text-classification"):
        prepare([config(task="image-classification")])


def test_positions_that_begin_behind_the_padding(config):
    """RoBERTa's, whose table must be longer than the texts by as much."""
    trainer, _ = prepare([config(model={**ROBERTA, "max_position_embeddings": 290})])
    assert trainer.train_dataset.room == 290 - 256 - 1 - 1, "<pad> is token 256, and there is <cls>"
    trainer.args.max_steps = 1
    trainer.train()
    with pytest.raises(RunError, match="model: Padding_idx must be within num_embeddings"):
        prepare([config(model=ROBERTA)])


# Pairs and pretrained models


@pytest.fixture
def pairs(tmp_path):
    """Two halves of one text, or of two."""
    rows = [{"first": f"half {i % 9} of", "second": f"text {(i + i % 2) % 9}", "label": i % 2} for i in range(60)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    columns = {"text_column": "first", "text_pair_column": "second", "label_column": "label"}
    return {"name": str(file), **columns, "validation": 20}


def test_pairs_go_through_one_encoder(config, pairs, tmp_path, capsys):
    results = main([config(**pairs, training={"max_steps": 3})])
    folder = str(tmp_path / "run")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert isinstance(model, KerformerTextForSequencePairClassification)
    assert evaluate(folder)["metrics"]["accuracy"] == results["metrics"]["eval_accuracy"]
    card = Path(folder, "README.md").read_text()
    snippet = card.split("```python\n")[1].split("```")[0].replace('"run-pairs"', repr(folder))
    exec(compile(snippet, "card", "exec"), {})
    assert "tensor" in capsys.readouterr().out
    assert command_line(["predict", folder, "a text"]) == 1
    assert "classifies pairs of texts, which pipelines can't" in capsys.readouterr().err


def test_other_models_read_a_pair_as_one(config, pairs, tmp_path):
    results = main([config(**pairs, model=BERT, training={"max_steps": 2})])
    trainer, _ = prepare([config(**pairs, model=BERT, training={"max_steps": 2})])
    batch = trainer.eval_dataset[0]
    text = trainer.processing_class.decode(batch["input_ids"])
    assert text.startswith("<cls>half ") and "<sep>text " in text
    assert results["model"] == "bert" and pipeline("text-classification", str(tmp_path / "run"))("half 1 of")


def test_from_a_pretrained_model_with_its_own_tokenizer(config, tmp_path):
    words = ["a film to see again and then once more zzz"] * 3
    tokenizer = classifier_tokenizer("word", words, 300, 1, first_token=True)
    fields = {name: value for name, value in BERT.items() if name != "model_type"}
    pretrained = BertForMaskedLM(
        BertConfig(**fields, vocab_size=len(tokenizer) + 3, pad_token_id=tokenizer.pad_token_id)
    )
    for part in (pretrained, tokenizer):
        part.save_pretrained(tmp_path / "pretrained")
    trainer, _ = prepare([config(model={"pretrained": str(tmp_path / "pretrained")})])
    weights = trainer.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(weights, pretrained.bert.embeddings.word_embeddings.weight)
    assert trainer.processing_class.get_vocab() == tokenizer.get_vocab()
    trainer, _ = prepare([config("again", model=KERFORMER, tokenizer=str(tmp_path / "pretrained"))])
    assert trainer.model.config.vocab_size == len(tokenizer)


def test_predict_by_the_command_line(config, tmp_path, capsys):
    main([config(training={"max_steps": 2})])
    capsys.readouterr()
    assert command_line(["predict", str(tmp_path / "run"), "a film", "zzz"]) == 0
    name, *labels = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert name == "a film" and {line.split()[1] for line in labels} == {"good", "bad"}
    assert command_line(["predict", str(tmp_path / "run"), ""]) == 1
    assert "is empty" in capsys.readouterr().err
    assert command_line(["predict", str(tmp_path / "run"), "long " * 20]) == 1
    assert "the model has max_position_embeddings=32" in capsys.readouterr().err


def test_other_data_are_evaluated_whole(config, tmp_path):
    main([config(training={"max_steps": 2})])
    (tmp_path / "other.csv").write_text("said,feeling\na film,good\nzzz,bad\nzz,bad\n")
    (tmp_path / "test.csv").write_text("review,mood\na film,good\n")
    options = ["--text-column", "said", "--label-column", "feeling", "--output", str(tmp_path / "scores.json")]
    assert command_line(["evaluate", str(tmp_path / "run"), str(tmp_path / "other.csv"), *options]) == 0
    assert json.loads((tmp_path / "scores.json").read_text())["samples"] == 3
    given = {"model": str(tmp_path / "run"), "dataset": str(tmp_path / "test.csv"), "label_column": "mood"}
    assert evaluate(**given)["samples"] == 1
    (tmp_path / "test.csv").write_text("review,mood\na film,ugly\n")
    with pytest.raises(RunError, match="has the label 'ugly', and the model knows only 'bad', 'good'"):
        evaluate(**given)


def test_tokenizers_survive_their_folder(config, tmp_path):
    main([config(training={"max_steps": 1}, model=BERT)])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer("ab")["input_ids"] == [tokenizer.cls_token_id, 97, 98] and tokenizer.model_max_length == 32


SMALL = [file.stem for file in sorted((Path(__file__).parents[3] / "configs").glob("*_kerformer_text_small.yaml"))]


@pytest.mark.parametrize("name", SMALL)
def test_the_baseline_of_a_config_differs_in_the_model_alone(name):
    """BERT with the same size, data, optimizer and schedule; its one position more is for <cls>."""
    ours, theirs = (load_run([str(find_config(x))], "", SECTIONS, task=TASK) for x in (name, baseline_of(name)))
    assert ours.dataset == theirs.dataset and ours.given["training"] == theirs.given["training"]
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    assert [ours.model[key] for key in sizes] == [theirs.model[key] for key in sizes]
    assert theirs.model["max_position_embeddings"] == ours.model["max_position_embeddings"] + 1
    full = load_run([str(find_config(name.removesuffix("_small")))], "", SECTIONS, task=TASK)
    assert full.dataset["name"] == ours.dataset["name"]


def baseline_of(name: str) -> str:
    return name.replace("kerformer_text", "bert")
