"""Bad input of every kind: exit code 1 and one line, which names what is wrong and what would be right."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from hf_efficient.cli import main
from hf_efficient.data.image_files import Finder

VIT = {
    "model_type": "kerformer_vit",
    **{"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}
LANGUAGE_MODEL = {
    "model_type": "compressive_performer",
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "memory_length": 16},
}
TRAINING = {"max_steps": 1, "disable_tqdm": True}


def write(file="run.yaml", task="image-classification", dataset="digits", model=VIT, **training) -> str:
    sections = {"dataset": dataset, "model": model, "training": {**TRAINING, **training}}
    Path(file).write_text(yaml.safe_dump({"task": task, **sections, "energy": {"enabled": False}}))
    return file


@pytest.fixture
def said(capsys):
    """What a command that must fail says, in its one line."""

    def run(*words) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 1
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("Error: ") and len(line) < 1000
        return line

    return run


@pytest.fixture
def pictures(monkeypatch, tmp_path):
    """A folder with four small pictures of each of two classes, for training alone."""
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        folder = Path("pictures", name)
        folder.mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return Path("pictures")


# Values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rate", ".nan"], "training: learning_rate=nan must be above 0, at most 1e30."),
        (["--per_device_train_batch_size", "0"], "per_device_train_batch_size=0 must be from 1 to 1,048,576."),
        (["--num_train_epochs", "-1"], "num_train_epochs=-1.0 must be above 0."),
        (["--seed", "-1"], "seed=-1 must be from 0 to 4,294,967,295."),
        (["--report_to", "clipboard"], "report_to='clipboard' is unknown or not installed"),
        (["--metric_for_best_model", "acuracy"], "must be one of loss, accuracy, micro_f1, macro_f1."),
        (["--lr_scheduler_kwargs", "{speed: 3}"], "training.lr_scheduler_kwargs={'speed': 3}: "),
        (["--lr_scheduler_kwargs", "{1: 3}"], "training.lr_scheduler_kwargs={1: 3}: "),
        (["--optim", "schedule_free_sgd"], "training.optim: You need to install"),
        (["--optim", "adam_of_tomorrow"], "training: adam_of_tomorrow is not a valid OptimizerNames"),
        (["--initializer_range", ".nan"], "initializer_range=nan must be finite"),
        (["--initializer_range", "1e10"], "initializer_range=10000000000.0 must be at most 1."),
        (["--layer_norm_eps", "-1e-5"], "layer_norm_eps=-1e-05 must be positive"),
        (["--layer_norm_eps", "5.0"], "layer_norm_eps=5.0 must be at most 1."),
        (["--hidden_size", "1000000000"], "hidden_size=1000000000: the weights alone would take"),
        (["--hidden_size", "1e9"], "hidden_size"),
        (["--num_hidden_layers", "1000000000"], "model.num_hidden_layers=1000000000: so many layers don't fit into"),
        (["--num_hidden_layers", "1e9"], "model.num_hidden_layers=1000000000.0: so many layers don't fit into"),
        (["--num_labels", "1000000000"], "num_labels=1000000000 must be a whole number, at most 10,000,000."),
        (["--num_labels", "ten"], "num_labels='ten' must be a whole number"),
        (["--model", "{model_type: vit, num_labels: ten}"], "--model"),
        (["--attention_options", "{1: 2}"], "attention_options has no 1"),
        (["--mixup", ".inf"], "augmentation: mixup=inf must not be negative, nor infinite."),
        (["--interval", ".inf"], "energy.interval=inf must be a number, more than 0."),
        (["--dataset", "cifar11"], "unknown images 'cifar11': there are cifar10, cifar100, tiny-imagenet, mnist"),
        (["--limit", "0"], "dataset: limit=0 must be at least 1, or None."),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_values(said, words, message):
    assert message in said("train", write(), *words)
    assert not Path("results/run/results.json").exists()


@pytest.mark.parametrize(
    "fields",
    [
        *({"num_labels": "ten"}, {"initializer_range": float("nan")}, {"num_hidden_layers": 10**9}),
        *({"hidden_size": "ten"}, {"hidden_size": 1e9}, {"initializer_range": -1}, {"id2label": 3}),
    ],
    ids=str,
)
def test_values_of_transformers_own_models(said, fields):
    (name,) = fields
    assert name in said("train", write(model={"model_type": "vit", "image_size": 8, "patch_size": 2, **fields}))


@pytest.mark.parametrize("fields", [{"patch_size": 0}, {"hidden_act": "sharp"}, {"dtype": "float5"}], ids=str)
def test_values_that_transformers_own_models_stumble_over(said, fields):
    message = said("train", write(model={"model_type": "vit", "image_size": 8, "patch_size": 2, **fields}))
    assert message.startswith("Error: model: ")


def test_a_data_set_that_is_not_there(said, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_EFFICIENT_DATA", str(tmp_path))

    def nowhere(*_):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(Finder, "on_hub", nowhere)
    message = said("train", write(dataset="cifar10"))
    assert "should hold it as cifar10/*.parquet or cifar10/train/<class>/<image>.png" in message
    assert message.endswith("can't be read from the Hub: no network at all")


# YAML


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def laughs(count: int) -> str:
    """Each line stands for nine times the one before."""
    return "\n".join(["x0: &a0 [lol]", *(f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, count))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"model: {deep(1000)}", "run.yaml: it nests too deep"),
        (laughs(40), "run.yaml: its aliases (*name) stand for more than 100,000 values."),
        ("model: &m\n  model_type: *m", "run.yaml"),
        ("task: image-classification\nmodel: {1: 2}", "run.yaml: model has the key 1, which is no word."),
        ("task: image-classification\nmodel: {null: 2}", "run.yaml: model has the key null, which is no word."),
        ("task: image-classification\nmodel: {? [a] : 2}", "run.yaml"),
        ("1: 2", "there is no section 1"),
        ("task: [1]", "task must be a word"),
        ("\x00", "run.yaml"),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_yaml(said, text, message):
    Path("run.yaml").write_text(text)
    assert message in said("train", "run.yaml")


# Files


def test_images_that_are_none(said, pictures):
    damages = {
        "corrupt": lambda file: file.write_bytes(file.read_bytes()[:60]),
        "no image": lambda file: file.write_text("cat"),
        "empty": lambda file: file.write_bytes(b""),
        "dangling": lambda file: (file.unlink(), file.symlink_to("/nowhere.png")),
    }
    file = pictures / "cat" / "1.png"
    whole = file.read_bytes()
    for damage in damages.values():
        file.unlink()
        file.write_bytes(whole)
        damage(file)
        message = said("train", write(dataset=str(pictures)))
        assert "dataset: " in message and "cat/1.png" in message


def test_folders_that_hold_no_images(said, tmp_path):
    Path("empty").mkdir()
    assert "empty has no images that could be used: it should hold <class>/<image>.png" in said(
        "train", write(dataset="empty")
    )
    Path("notes.txt").write_text("x")
    assert "notes.txt must be one of .parquet, .csv" in said("train", write(dataset="notes.txt"))


def test_folders_that_cannot_be_written_to(said, trained):
    Path("file").write_text("x")  # root may write anywhere else
    assert "training" in (line := said("train", write(), "--output_dir", "file/run")) and "file/run" in line
    words = ("evaluate", trained("classifier"), "digits", "--limit", "20", "--output", "file/x.json")
    assert "file/x.json can't be written" in said(*words)
    assert "file/m.onnx can't be written" in said("export", trained("classifier"), "--to", "file/m.onnx")


@pytest.mark.parametrize("text", ["a: [", "42", "training: 7", "\x00\x01", "nonsense: {}"], ids=repr)
def test_a_run_yaml_that_is_garbage(said, text):
    folder = Path("results/run")
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "run.yaml").write_text(text)
    message = said("train", write())
    assert "run.yaml" in message and "give another output_dir, or, if it does, remove that file" in message


def test_damaged_weights(said, trained, tmp_path):
    folder, picture = tmp_path / "damaged", tmp_path / "x.png"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(picture)
    for file in Path(trained("classifier")).iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:100], whole[:-10], b"", b"\xff" * 64):
        weights.write_bytes(content)
        for words in (
            ("evaluate", folder, "digits", "--limit", "20"),
            ("train", write(model={"pretrained": str(folder)})),
            ("predict", folder, picture),
            ("export", folder),
        ):
            assert str(folder) in said(*words), words


@pytest.mark.parametrize(
    "text", ["null", "42", "[]", '{"model_type": "vit", "hidden_size": "ten"}', "{", "\0"], ids=repr
)
def test_a_config_that_is_garbage(said, text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    Image.new("RGB", (8, 8)).save("x.png")
    for words in (
        ("evaluate", tmp_path, "digits"),
        ("train", write(model={"pretrained": str(tmp_path)})),
        ("train", write(model={**VIT, "pretrained": str(tmp_path)})),
        ("predict", tmp_path, "x.png"),
        ("export", tmp_path),
        ("serve", tmp_path),
    ):
        assert "can't be read" in (line := said(*words)) and str(tmp_path) in line, words


def test_pretrained_weights_that_are_not_there(said):
    for model in ({"pretrained": "nowhere"}, {**VIT, "pretrained": "nowhere"}):
        assert "model.pretrained='nowhere' can't be read: " in said("train", write(model=model))


def test_a_config_with_the_names_of_methods(said, trained, tmp_path):
    config = json.loads((Path(trained("classifier")) / "config.json").read_text())
    for name in ("to_dict", "validate", "save_pretrained", "misfit", "num_positions"):
        (tmp_path / "config.json").write_text(json.dumps({**config, name: 1}))
        assert f"'{name}' is a method of KerformerViTConfig" in said("evaluate", tmp_path, "digits")


def test_predictions_of_what_is_no_image(said, trained):
    Path("x.png").write_text("no image")
    assert "x.png" in said("predict", trained("classifier"), "x.png")


# Text


@pytest.mark.parametrize("model", [LANGUAGE_MODEL, {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}])
def test_bytes_that_are_no_text_are_trained_on(model, capsys):
    """And the sample of a continuation is no reason to fail after all that work."""
    Path("bytes").write_bytes(b"\xff" * 5000)
    size = {"segment_length": 16} if model is LANGUAGE_MODEL else {"n_positions": 32}
    file = write(task="text-generation", dataset="bytes", model={**model, **size}, per_device_train_batch_size=2)
    assert main(["train", file]) == 0
    assert "How the saved model goes on" in capsys.readouterr().out


def test_text(said):
    Path("bytes").write_bytes(b"\xff" * 5000)
    language = {"task": "text-generation", "model": LANGUAGE_MODEL}
    assert "dataset: train is not UTF-8: byte 0xff at position 0" in said(
        "train", write(**language, dataset={"name": "bytes", "level": "bpe"})
    )
    for options, message in (
        ({"document_start": ""}, "document_start='' is everywhere"),
        ({"level": "word", "vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"level": "bpe", "vocab_size": 10**12}, "vocab_size=1000000000000 must be at least 1, below 2 billion"),
        ({"level": "word", "min_count": -3}, "min_count=-3 must be at least 1"),
        ({"name": "nothing"}, "unknown texts 'nothing': there are enwik8, pydocs, the path of a file or folder"),
    ):
        assert message in said("train", write(**language, dataset={"name": "pydocs", "limit": 9000, **options}))
