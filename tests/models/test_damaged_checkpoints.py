"""Checkpoints that are hostile, damaged or of another model: never executed, never half loaded in silence."""

import json
import os
import pickle

import pytest
import torch
from families import inputs, tiny_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModel, Trainer, TrainingArguments

import hf_efficient
from hf_efficient.models.auto import FAMILIES

FILE = "model.safetensors"
families = pytest.mark.parametrize("family", FAMILIES)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def saved(tmp_path):
    tiny_model("kerformer_vit").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@families
def test_only_safetensors_are_written(family, tmp_path):
    tiny_model(family).save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".py", ".safetensors"}


@pytest.mark.parametrize("as_state_dict", [False, True])
def test_a_pickle_among_the_weights_is_not_executed(saved, tmp_path, as_state_dict):
    (saved / FILE).unlink()
    payload = Payload(tmp_path / "executed")
    if as_state_dict:
        torch.save({"layernorm.weight": payload}, saved / "pytorch_model.bin")
    else:
        (saved / "pytorch_model.bin").write_bytes(pickle.dumps(payload))
    with pytest.raises((pickle.UnpicklingError, OSError, ValueError, RuntimeError)):
        AutoModel.from_pretrained(saved)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_pickle_in_a_checkpoint_is_not_executed(file, tmp_path):
    model = tiny_model("kerformer_vit", "AutoModelForImageClassification")
    batch = inputs(model, 4, labels=True)
    rows = [{name: x[i] for name, x in batch.items()} for i in range(4)]
    options = {"save_steps": 1, "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 2}
    Trainer(model, TrainingArguments(tmp_path / "run", max_steps=1, **options), train_dataset=rows).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    assert (checkpoint / file).exists()
    torch.save({"state": Payload(tmp_path / "executed")}, checkpoint / file)
    trainer = Trainer(model, TrainingArguments(tmp_path / "run", max_steps=2, **options), train_dataset=rows)
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert not (tmp_path / "executed").exists()


DAMAGE = {
    "empty": lambda data: b"",
    "short header": lambda data: data[:4],
    "header too large": lambda data: (1 << 62).to_bytes(8, "little") + data[8:],
    "header cut": lambda data: data[:60],
    "header is no JSON": lambda data: data[:8] + b"!" * 20 + data[28:],
    "tensors cut": lambda data: data[:-100],
    "bytes too many": lambda data: data + b"\0" * 100,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_broken_safetensors_are_an_error(saved, damage):
    file = saved / FILE
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.raises((SafetensorError, OSError, ValueError)):
        AutoModel.from_pretrained(saved)


@families
def test_missing_and_unexpected_weights_are_reported(family, tmp_path):
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / FILE)
    lost = next(name for name in sorted(weights) if "norm" in name)
    weights["nobody.knows"] = weights.pop(lost)
    save_file(weights, tmp_path / FILE, metadata={"format": "pt"})
    _, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {lost} and set(info["unexpected_keys"]) == {"nobody.knows"}


@families
def test_another_shape_is_an_error(family, tmp_path):
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / FILE)
    name = max(weights, key=lambda name: weights[name].dim())
    weights[name] = weights[name].repeat(2, *[1] * (weights[name].dim() - 1))
    save_file(weights, tmp_path / FILE, metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match="mismatch"):
        type(model).from_pretrained(tmp_path)


@families
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_reported(family, value, tmp_path):
    model = tiny_model(family)
    name, weight = next(iter(model.named_parameters()))
    with torch.no_grad():
        weight.view(-1)[0] = value
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=f"1 of the weights hold NaN or infinity: {name}"):
        type(model).from_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="NaN"):
        AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)


def test_whole_weights_are_no_reason_to_warn(saved, recwarn):
    AutoModel.from_pretrained(saved)
    assert not [str(w.message) for w in recwarn if "NaN" in str(w.message)]


def test_large_weights_are_no_reason_to_warn(saved, recwarn):
    """In half precision their sum is infinite."""
    weights = {
        name: torch.full_like(x, 30000, dtype=torch.float16) for name, x in load_file(f"{saved}/{FILE}").items()
    }
    save_file(weights, saved / FILE, metadata={"format": "pt"})
    AutoModel.from_pretrained(saved, dtype=torch.float16)
    assert not [str(w.message) for w in recwarn if "NaN" in str(w.message)]


def test_tied_weights_stay_tied(tmp_path):
    base = tiny_model("compressive_performer")
    model = hf_efficient.CompressivePerformerForCausalLM(base.config)
    model.save_pretrained(tmp_path)
    again = hf_efficient.CompressivePerformerForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    for name, x in model.state_dict().items():
        assert torch.equal(x, again.state_dict()[name]), name


@pytest.mark.parametrize(("model_type", "message"), [(None, "Should have a `model_type` key"), ("nobody", "`nobody`")])
def test_a_config_of_no_known_model_is_an_error(saved, model_type, message):
    file = saved / "config.json"
    fields = json.loads(file.read_text())
    del fields["auto_map"], fields["model_type"]
    file.write_text(json.dumps(fields | ({"model_type": model_type} if model_type else {})))
    with pytest.raises(ValueError, match=message):
        AutoModel.from_pretrained(saved)


def test_a_config_that_was_cut_is_an_error(saved):
    text = (saved / "config.json").read_text()
    (saved / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(OSError, match=r"not a valid JSON file|config\.json"):
        AutoModel.from_pretrained(saved)
