"""Weights that no process has as a whole (`accelerate launch --use_fsdp`) are trained, saved and resumed as usual."""

import json
import shutil
from pathlib import Path

import pytest
import sharded_run
import torch
import yaml
from PIL import Image
from preloaded import unused_port
from safetensors.torch import load_file
from transformers import pipeline

ROOT = Path(__file__).parents[2]
VIT = {
    **{"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 16},
}
MODELS = {
    "hugginggreen_vit": {**VIT, "top_k": 8, "prob": 0.5},
    "kerformer_vit": VIT,
    "mobilevit_v2": {
        **{"image_size": 32, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1]},
        **{"base_attn_unit_dims": [32, 32, 32]},
    },
    "imagesig": {
        "image_size": 32,
        "stem_channels": 4,
        "signature_depth": 2,
        "pooler_output_size": 8,
        "classifier_dropout_prob": 0.0,
    },
    "kerformer_text": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16},
        **{"max_position_embeddings": 32, "hidden_dropout_prob": 0.0},
    },
    "compressive_performer": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16},
        **{"segment_length": 8, "memory_length": 8, "compressed_memory_length": 4, "compression_rate": 2},
    },
}
STEPS = 4
# Epsilon is large: of gradients that are 0 but for rounding Adam would make steps of full length.
TRAINING = {
    **{"max_steps": STEPS, "save_steps": STEPS // 2, "save_strategy": "steps", "save_total_limit": None},
    **{"eval_strategy": "steps", "eval_steps": STEPS // 2, "learning_rate": 1e-2, "logging_steps": 1},
    **{"adam_epsilon": 1e-3, "load_best_model_at_end": False},
    **{"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8},
}


def write_run(family: str, folder: Path, **training) -> str:
    """Its YAML file; results go to the folder."""
    run = {
        "task": "image-classification",
        "dataset": {"name": "digits", "limit": 100, "evaluation_limit": 40},
        "model": {"model_type": family, **MODELS[family]},
        "training": {**TRAINING, **training, "output_dir": str(folder)},
        "energy": {"enabled": False},
    }
    if family == "compressive_performer":
        run |= {"task": "text-generation", "dataset": {"name": "pydocs", "level": "byte", "limit": 20_000}}
    if family == "kerformer_text":
        texts = folder.with_suffix(".jsonl")
        texts.write_text("\n".join(json.dumps({"text": f"{i} " * (1 + i % 9), "label": i % 2}) for i in range(140)))
        run |= {"task": "text-classification", "dataset": {"name": str(texts), "level": "byte", "validation": 40}}
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(run))
    return str(file)


def documented_command() -> list[str]:
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = (line.split() for line in page.splitlines() if line.startswith("accelerate launch"))
    return command[2:]


@pytest.fixture
def share(preloaded):
    """Trains a run by the command of docs/scaling.md: two processes that share the weights."""
    *options, _, _ = documented_command()

    def train(file: str | Path) -> None:
        port = ("--main_process_port", unused_port())
        done = preloaded.run("-m", "accelerate.commands.launch", *port, *options, sharded_run.__file__, file)
        assert done.returncode == 0, done.stderr[-3000:]

    return train


def test_the_documented_run_is_one_that_can_be_sharded():
    *_, script, file = documented_command()
    training = yaml.safe_load((ROOT / file).read_text())["training"]
    assert (ROOT / script).is_file() and training["optim"] != "muon" and not training.get("ema_decay")


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_it_equals_one_process(share, preloaded, tmp_path, family):
    """And once more from the checkpoint half-way, as if it had been killed after that."""
    one, two = tmp_path / "one", tmp_path / "two"
    alone = {"per_device_train_batch_size": 16}
    if family == "mobilevit_v2":  # whose BatchNorms see as many images at once as in each of two processes
        alone = {"gradient_accumulation_steps": 2}
    done = preloaded.run("-m", "hf_efficient", "train", write_run(family, one, **alone))
    assert done.returncode == 0, done.stderr[-3000:]
    share(write_run(family, two))
    weights, expected = (load_file(folder / "model.safetensors") for folder in (two, one))
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        if "running_" not in name and "num_batches" not in name:  # of BatchNorm: those of the first process's images
            torch.testing.assert_close(weights[name], weight, atol=2e-5, rtol=1e-4, msg=f"{family} {name}")
    metrics = json.loads((two / "results.json").read_text())["metrics"]

    shutil.rmtree(two / f"checkpoint-{STEPS}")
    (two / "model.safetensors").unlink()
    share(two.with_suffix(".yaml"))
    for name, weight in load_file(two / "model.safetensors").items():
        assert torch.equal(weight, weights[name]), name
    assert json.loads((two / "results.json").read_text())["metrics"] == metrics
    if family == "compressive_performer":
        assert pipeline("text-generation", str(two))("The ", max_new_tokens=3)[0]["generated_text"]
    elif family == "kerformer_text":
        assert pipeline("text-classification", str(two))("1 1")[0]["score"] > 0.4
    else:
        assert len(pipeline("image-classification", model=str(two))(Image.new("RGB", (8, 8)))) == 5
