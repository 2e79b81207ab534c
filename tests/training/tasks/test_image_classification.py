"""Training a classifier; the script as people run it: killed, on two processes; and its result in pipeline()."""

import json
import os
import signal
import subprocess
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from preloaded import unused_port
from safetensors.torch import load_file
from transformers import pipeline

from hf_efficient.data.image_sets import load_images
from hf_efficient.training.checkpoints import list_checkpoints
from hf_efficient.training.errors import RunError
from hf_efficient.training.run import load_run
from hf_efficient.training.tasks.image_classification import build_trainer, main
from hf_efficient.training.tasks.images import pixel_statistics

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "train_image_classifier.py"
TINY = {"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
RUN = {
    "dataset": {"name": "digits", "limit": 100, "evaluation_limit": 37},
    "model": {
        **{"model_type": "hugginggreen_vit", **TINY, "intermediate_size": 16, "hidden_dropout_prob": 0.1},
        **{"top_k": 8, "prob": 0.5},
    },
    "augmentation": {"crop": 1, "mixup": 0.2},
    "training": {
        **{"per_device_train_batch_size": 16, "max_steps": 15, "eval_strategy": "steps", "eval_steps": 4},
        **{"logging_steps": 1, "ema_decay": 0.9, "learning_rate": 0.01},
    },
    "energy": {"enabled": False},
}


@pytest.fixture
def config(tmp_path):
    """Writes a run whose results go to a folder of its name."""

    def write(name="run", **changes):
        sections = {section: {**values, **changes.get(section, {})} for section, values in RUN.items()}
        if "model_type" in changes.get("model", {}):
            sections["model"] = {**TINY, "intermediate_size": 16, **changes["model"]}
        file = tmp_path / f"{name}.yaml"
        sections["training"] = {"output_dir": str(tmp_path / name), **sections["training"]}
        file.write_text(yaml.safe_dump(sections))
        return str(file)

    return write


@pytest.fixture
def start(preloaded):
    """python with these words, in a process of its own."""

    def start(*words, **variables):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([preloaded.python, *map(str, words)], **pipes, env=environment, cwd=ROOT)

    return start


# In one process


@pytest.mark.parametrize("model_type", ["hugginggreen_vit", "vit", "kerformer_vit"])
def test_a_result_is_complete_and_predicts_in_a_pipeline(config, tmp_path, model_type):
    changes = {} if model_type == "hugginggreen_vit" else {"model": {"model_type": model_type}}
    results = main([config(**changes, training={"max_steps": 4})])
    folder = tmp_path / "run"
    assert json.loads((folder / "results.json").read_text()) == results
    written = (
        "history.csv",
        "curves.png",
        "confusion.png",
        "predictions.png",
        "example.png",
        "run.yaml",
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    )
    for file in written:
        assert (folder / file).is_file(), file
    assert results["steps"] == 4 and results["seed"] == 42 and results["parameters"] > 1000
    assert {"torch", "transformers", "hf_efficient", "python"} == set(results["versions"])
    assert results["commit"] and results["peak_memory"] > 2**26

    images = load_images("digits", limit=100, evaluation_limit=37).evaluation
    pictures = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in images.pixels]
    classify = pipeline("image-classification", model=str(folder), device="cpu")
    classify.model.config.problem_type = None
    found = classify(pictures, top_k=10, function_to_apply="none")
    scores = [{entry["label"]: entry["score"] for entry in row} for row in found]
    logits = torch.tensor([[row[str(digit)] for digit in range(10)] for row in scores])
    accuracy = (logits.argmax(1) == images.labels).double().mean().item()
    assert accuracy == results["metrics"]["eval_accuracy"]
    loss = torch.nn.functional.cross_entropy(logits, images.labels).item()
    assert loss == pytest.approx(results["metrics"]["eval_loss"], rel=1e-5)


def test_images_of_the_data_are_left_out_if_asked(config, tmp_path):
    main([config(training={"max_steps": 2, "show_images": False})])
    assert {file.name for file in (tmp_path / "run").glob("*.png")} == {"curves.png", "confusion.png"}
    card = (tmp_path / "run" / "README.md").read_text()
    assert "(confusion.png)" in card and "predictions.png" not in card and "example.png" not in card


def test_a_finished_run_reports_again(config):
    first, second = main([config()]), main([config()])
    assert first["metrics"] == second["metrics"] and first["steps"] == second["steps"] == 15
    assert first["train_loss"] == second["train_loss"] and first["best_step"] == second["best_step"]


def test_the_folder_of_another_run_is_refused(config, tmp_path):
    main([config(training={"max_steps": 4})])
    with pytest.raises(RunError, match=r"belongs to another run: training.learning_rate was 0.01 and is 0.02"):
        main([config(training={"max_steps": 4}), "--learning_rate", "0.02"])
    with pytest.raises(RunError, match=r"model.top_k was 8 and is 4"):
        main([config(training={"max_steps": 4}), "--top_k", "4"])
    with pytest.raises(RunError, match="resume is false"):
        main([config(training={"max_steps": 4}), "--resume", "false"])
    harmless = ("--save_total_limit", "1", "--hub_always_push", "true", "--hub_revision", "dev")
    main([config(training={"max_steps": 4}), *harmless])


def test_statistics_are_those_of_the_pixels():
    images = load_images("digits", limit=50).train
    mean, std = pixel_statistics(images)
    pixels = np.asarray(images.pixels) / 255
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), atol=1e-4)


def test_the_model_knows_classes_and_normalisation(config):
    trainer = build_trainer(load_run([config()]))
    model = trainer.model.config
    assert model.num_labels == 10 and model.id2label[3] == "3"
    assert model.image_mean == list(trainer.processing_class.image_mean)


def test_what_is_wrong_is_one_line(config, preloaded):
    done = preloaded.run(SCRIPT, config(), "--learning_ratee", "1")
    assert done.returncode == 1
    assert done.stderr.strip().endswith("Error: --learning_ratee is unknown; did you mean learning_rate?")
    assert "Traceback" not in done.stderr


# In processes that are killed


def kill_at(start, step, number, *words):
    """Starts the script and sends it a signal as soon as it reports a step."""
    process = start(SCRIPT, *words, "--verbose")
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            process.send_signal(number)
            break
    process.stdout.read()
    return process.wait(), process.stderr.read()


def finish(*processes):
    for done in processes:
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_killed_and_started_again_by_the_same_command(config, start, preloaded, tmp_path):
    finish(preloaded.run(SCRIPT, config("whole")))
    code, _ = kill_at(start, 7, signal.SIGKILL, config("killed"))
    assert code == -signal.SIGKILL
    assert list_checkpoints(tmp_path / "killed") and not (tmp_path / "killed" / "results.json").exists()
    code, err = kill_at(start, 10, signal.SIGTERM, config("killed"))
    assert code == 143, err
    finish(preloaded.run(SCRIPT, config("killed")))
    assert_equal_results(tmp_path / "killed", tmp_path / "whole", exact=True)
    assert (tmp_path / "killed" / "history.csv").read_bytes() == (tmp_path / "whole" / "history.csv").read_bytes()


def assert_equal_results(found, expected, exact):
    first, second = (json.loads((folder / "results.json").read_text()) for folder in (found, expected))
    weights, others = (load_file(folder / "model.safetensors") for folder in (found, expected))
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        if exact:
            assert torch.equal(tensor, others[name]), name
        else:
            torch.testing.assert_close(tensor, others[name], rtol=1e-5, atol=1e-5, msg=name)
    for key in ("metrics", "train_loss", "best_step", "steps", "epochs"):
        assert first[key] == (second[key] if exact else pytest.approx(second[key], rel=1e-5)), key


def ranks(file):
    """The processes that run a config, without the one that started them."""
    running = ((process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [process for process, words in running if file in words and "torch.distributed.run" not in words]


def torchrun(start, file):
    """One of the two is killed in the midst of training: torchrun starts both again, which go on from a checkpoint."""
    options = ("--standalone", "--nproc_per_node", "2", "--max-restarts", "3")
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # or the new processes may find the old ones' addresses
    process = start("-m", "torch.distributed.run", *options, SCRIPT, file, "--verbose", **fresh)
    for line in process.stdout:
        if line.startswith("step 7/"):
            _, second = ranks(file)
            second.kill()
            break
    again = process.stdout.read()
    assert process.wait() == 0, process.stderr.read()[-3000:]
    assert "step 5/" in again and "step 1/" not in again


def accelerate(start, file):
    """The command of docs/training.md, which calls torchrun and says more to the processes."""
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = (line.split() for line in page.splitlines() if line.startswith("accelerate launch"))
    *options, script, config = command[2:]
    assert script == "scripts/train_image_classifier.py" and config.startswith("configs/")
    port = ("--main_process_port", unused_port())
    process = start("-m", "accelerate.commands.launch", *port, *options, SCRIPT, file)
    _, error = process.communicate()
    assert process.returncode == 0, error[-3000:]


def write_digits(folder: Path) -> dict:
    """Digits in parquet, of which one is none, as a data set to stream."""
    folder.mkdir()
    for split, images in zip(("train", "test"), load_images("digits", limit=100), strict=True):
        pictures = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in images.pixels]
        rows = [BytesIO() for _ in pictures]
        for picture, row in zip(pictures, rows, strict=True):
            picture.save(row, "PNG")
        content = [row.getvalue() if i != 7 else b"no image" for i, row in enumerate(rows)]
        table = pa.table({"image": content, "label": images.labels.numpy()})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=20)
    return {"name": str(folder), "limit": None, "image_size": 8, "streaming": True, "skip_corrupt": True}


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "streams"), [(torchrun, False), (accelerate, False), (torchrun, True)])
def test_two_processes_equal_one_with_the_same_global_batch(config, start, preloaded, tmp_path, launcher, streams):
    """Dropout is drawn per process; everything else, sampled patches too, is the same.

    Keys have no bias here: its gradient is 0 but for rounding, of which Adam makes steps of full length. The lowest
    accuracy is called the best, so that the last weights are not: in the end every process must load those.
    """
    exact, early = {"model": {"hidden_dropout_prob": 0.0, "qkv_bias": False}}, {"greater_is_better": False}
    if streams:
        exact["dataset"] = write_digits(tmp_path / "digits")
    finish(preloaded.run(SCRIPT, config("one", **exact, training=early)))
    launcher(start, config("two", **exact, training={"per_device_train_batch_size": 8, **early}))
    results = json.loads((tmp_path / "two" / "results.json").read_text())
    assert results["best_step"] < 15 and results["processes"] == 2
    assert results.get("skipped", {}).get("count", 0) == (2 if streams else 0)
    assert_equal_results(tmp_path / "two", tmp_path / "one", exact=False)
