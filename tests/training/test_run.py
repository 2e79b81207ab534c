"""One YAML = one run: what is read, what the command line overrides, what is refused and in which words."""

from pathlib import Path

import pytest
import yaml

from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.image_sets import ImageOptions
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.build_model import build_config
from hf_efficient.training.errors import RunError
from hf_efficient.training.run import load_run
from hf_efficient.training.run_file import read_file
from hf_efficient.training.run_keys import keys_of
from hf_efficient.training.run_values import read_yaml

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
SECTIONS = {"dataset": ImageOptions, "augmentation": Augmentation}
RUN = {
    "dataset": "digits",
    "model": {"model_type": "hugginggreen_vit", "hidden_size": 32, "num_attention_heads": 2, "image_size": 32},
    "augmentation": {"flip": True},
    "training": {"learning_rate": 0.1, "lr_scheduler_kwargs": {"a": 1, "b": 2}},
}


@pytest.fixture
def load(tmp_path):
    def load(*words, **sections):
        file = tmp_path / "small.yaml"
        file.write_text(yaml.safe_dump({**RUN, **sections}))
        return load_run([str(file), *map(str, words)], "Trains.", SECTIONS)

    return load


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_of_ours_has_a_model(file):
    sections = read_file(str(file))
    assert set(sections) <= {"task", "dataset", "model", "augmentation", "training", "energy"}
    if "pretrained" not in sections["model"]:
        build_config(sections["model"])


CLASSIFIERS = [file for file in CONFIGS if file.stem.startswith("cifar10_") and "_rq3" not in file.stem]


@pytest.mark.parametrize("file", CLASSIFIERS, ids=lambda file: file.stem)
def test_classifiers_configs_load(file):
    run = load_run([str(file)], "", SECTIONS)
    assert run.name == file.stem and run.dataset["name"] == "cifar10"
    assert run.training.output_dir == f"results/{file.stem}"


def test_a_run_is_read(load):
    run = load()
    assert (run.name, run.dataset, run.augmentation) == ("small", {"name": "digits"}, {"flip": True})
    assert run.training.learning_rate == 0.1
    assert run.given["model"] == RUN["model"]


def test_defaults_work_on_a_laptop(load):
    arguments = load().training
    assert arguments.output_dir == "results/small"
    assert arguments.report_to == []
    assert arguments.use_cpu is not __import__("torch").accelerator.is_available()
    assert arguments.disable_tqdm, "there is no terminal here"
    assert not arguments.logging_nan_inf_filter and arguments.restore_callback_states_from_checkpoint
    assert arguments.eval_strategy == arguments.save_strategy == "epoch" and arguments.load_best_model_at_end
    assert arguments.metric_for_best_model == "loss" and arguments.greater_is_better is False


@pytest.mark.parametrize(
    ("words", "section", "key", "value"),
    [
        (["--learning_rate", "1e-3"], "training", "learning_rate", 0.001),
        (["--learning-rate=1e-3"], "training", "learning_rate", 0.001),
        (["--training.learning_rate", "2"], "training", "learning_rate", 2.0),
        (["--max_steps", "1e3"], "training", "max_steps", 1000),
        (["--bf16", "true"], "training", "bf16", True),
        (["--verbose"], "training", "verbose", True),
        (["--verbose", "--max_steps", "3"], "training", "max_steps", 3),
        (["--flip", "--verbose"], "augmentation", "flip", True),
        (["--lr_scheduler_kwargs.b", "3"], "training", "lr_scheduler_kwargs", {"a": 1, "b": 3}),
        (["--training.lr_scheduler_kwargs.c", "3"], "training", "lr_scheduler_kwargs", {"a": 1, "b": 2, "c": 3}),
        (["--heuristic", "entropy"], "model", "heuristic", "entropy"),
        (["--attention_options", "{prior: uniform}"], "model", "attention_options", {"prior": "uniform"}),
        (["--flip", "false", "--crop", "2"], "augmentation", "crop", 2),
        (["--dataset", "cifar10"], "dataset", "name", "cifar10"),
        (["--dataset.limit", "100"], "dataset", "limit", 100),
        (["--limit", "100"], "dataset", "limit", 100),
        (["--country", "DEU"], "energy", "country", "DEU"),
        (["--output_dir", "/tmp/x"], "training", "output_dir", "/tmp/x"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_the_command_line_goes_before_the_file(load, words, section, key, value):
    assert load(*words).given[section][key] == value
    if section == "training":
        assert getattr(load(*words).training, key) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_ratee", "1"], "--learning_ratee is unknown; did you mean learning_rate?"),
        (["--heuristics", "entropy"], "did you mean heuristic?"),
        (["--evaluation_strategy", "steps"], "is unknown; use eval_strategy"),
        (["--training.learning_ratee", "1"], "training.learning_ratee is unknown; did you mean learning_rate?"),
        (["--qqqqqq", "1"], "--help lists"),
        (["--learning_rate", "fast"], "training.learning_rate='fast' must be a number"),
        (["--max_steps", "1.5"], "training.max_steps=1.5 must be a whole number"),
        (["--bf16", "1"], "training.bf16=1 must be true or false"),
        (["--flip", "often"], "augmentation.flip='often' must be true or false"),
        (["--lr_scheduler_type", "cosin"], "training: cosin is not a valid SchedulerType"),
        (["--heuristic", "beauty"], "model: HuggingGreenViTConfig: heuristic='beauty' must be one of"),
        (["--hidden_size", "31"], "hidden_size=31 does not divide"),
        (["--model_type", "vitt"], "model.model_type='vitt' is unknown; did you mean vit?"),
        (["--ema_decay", "1"], "ema_decay=1.0 must be from 0 (off) to below 1"),
        (["--early_stopping_patience", "0"], "early_stopping_patience=0 must be at least 1"),
        (["--learning_rate"], "--learning_rate has no value"),
        (["--learning_rate", "--verbose"], "--learning_rate has no value"),
        (["--lr_scheduler_kwargs.b"], "--lr_scheduler_kwargs.b has no value"),
        (["--dataset"], "--dataset has no value"),
        (["stray"], "unexpected argument 'stray'"),
        (["--image_size", "8"], "--image_size is a key of dataset and model"),
        (["--scope", "galaxy"], "energy.scope='galaxy' must be one of"),
        (["--label_smoothing", "2"], "augmentation: label_smoothing=2.0 must be below 1"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_what_is_wrong_is_named(load, words, message):
    with pytest.raises(ValueError) as error:
        load(*words)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainng": {}}, "there is no section 'trainng'; did you mean training?"),
        ({"training": [1]}, "training must be a mapping"),
        ({"training": {"learning_rates": 1}}, "training.learning_rates is unknown; did you mean learning_rate?"),
        ({"augmentation": {"flips": 1}}, "augmentation.flips is unknown; did you mean flip?"),
        ({"dataset": {"limit": 5}}, "dataset.name is missing"),
        ({"model": {"model_type": "vit", "hiden_size": 4}}, "model.hiden_size is unknown; did you mean hidden_size?"),
        ({"model": {"hidden_size": 4}}, "model.model_type is missing"),
        ({"model": {"pretrained": "/nowhere"}}, "model.pretrained='/nowhere' can't be read"),
        ({"energy": {"land": "DEU"}}, "energy.land is unknown"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_what_is_wrong_in_a_file_is_named(load, sections, message):
    with pytest.raises(RunError) as error:
        load(**sections)
    assert message in str(error.value)


def test_files_that_are_no_runs_are_refused(tmp_path):
    for text, message in (("a: [", "line 1"), ("- 1", "must have sections"), ("model: {}\nmodel: {}", "twice")):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(RunError, match=message):
            load_run([str(tmp_path / "x.yaml")])
    with pytest.raises(RunError, match="can't be read"):
        load_run([str(tmp_path / "absent.yaml")])
    with pytest.raises(RunError, match="no run is given"):
        load_run([])


def test_help_teaches(tmp_path, capsys, load):
    with pytest.raises(SystemExit) as exit:
        load("--help")
    assert exit.value.code == 0
    text = capsys.readouterr().out
    for line in ("Trains.", "dataset:", "model:", "augmentation:", "training:", "energy:", "--section.key"):
        assert line in text
    assert "mirror half of the images" in text and "moving average of the weights" in text
    assert "learning_rate = 0.1" in text, "what the file says is shown"
    assert "hidden_size = 32" in text and "adam_beta2" not in text
    with pytest.raises(SystemExit):
        load("--help", "all")
    assert "adam_beta2" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        load_run(["--help"], "Trains.", SECTIONS)
    assert "the fields of its config" in capsys.readouterr().out


def test_no_is_a_word(load):
    assert read_yaml("[no, off, yes, true, False]", "x") == ["no", "off", "yes", True, False]
    assert load("--eval_strategy", "no").training.eval_strategy == "no"


def test_keys_come_from_signatures_and_docstrings():
    keys = keys_of(ImageOptions)
    assert keys["limit"].default is None and "at most so many images" in keys["limit"].help
    assert keys["image_column"].help == keys["label_column"].help != ""
    training = keys_of(EfficientTrainingArguments)
    assert training["ema_decay"].help and training["learning_rate"].help and training["eval_strategy"].help


def test_given_values_know_no_secret(load):
    run = load("--hub_token", "hf_secret")
    assert run.training.hub_token == "hf_secret" and "hf_secret" not in str(run.given)
