"""A process without hf_efficient, started by `test_remote_code_loading.py`: loads repositories, tells what it saw.

    python remote_code_client.py cases.json results.json

A case is {"check": a function below, ...its arguments}; its result is what the function returned, or a traceback.
"""

import gc
import importlib.abc
import json
import sys
import traceback
from pathlib import Path


class Blocker(importlib.abc.MetaPathFinder):
    """Makes hf_efficient, installed or not, impossible to import."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_efficient":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoBackbone, AutoConfig, AutoModel, AutoTokenizer, pipeline  # noqa: E402

TRUST = {"trust_remote_code": True}


def main_output(output) -> torch.Tensor:
    return next(output[name] for name in ("logits", "reconstruction", "last_hidden_state") if name in output)


def load(auto: str, repo):
    return getattr(transformers, auto).from_pretrained(repo, **TRUST)


def code(repo) -> dict[str, str]:
    return {file.name: file.read_text() for file in Path(repo).glob("*.py")}


# Folders of one name share what transformers has already imported of equal code.


def head(repo: str, auto: str, folder: str) -> dict:
    """Equal outputs, but for rounding; saved from here and loaded again, also as the family's base model."""
    batch, expected = load_file(f"{folder}/inputs.safetensors"), load_file(f"{folder}/expected.safetensors")["output"]
    model, again, inner_repo = (
        load(auto, repo).eval(),
        *(f"{folder}/{x}/{Path(repo).name}" for x in ("again", "inner")),
    )
    model.save_pretrained(again)
    reloaded = load(auto, again).eval()
    with torch.no_grad():
        outputs = [main_output(m(**batch)) for m in (model, reloaded)]
    base = load("AutoModel", again)
    same_map = AutoConfig.from_pretrained(again, **TRUST).auto_map == model.config.auto_map  # which `inner` shares
    inner = getattr(model, model.base_model_prefix, model)
    inner.save_pretrained(inner_repo)
    return {
        "module": type(model).__module__,
        "difference": max((output - expected).abs().max().item() for output in outputs),
        "same code": code(repo) == code(again) == code(inner_repo),
        "same map": same_map,
        "base": type(base).__name__,
        "inner": type(load("AutoModel", inner_repo)).__name__,
        "default": type(model.config)().attention,
    }


def mechanism(repo: str, auto: str, folder: str) -> dict:
    """Equal outputs; that it can be saved from here is no matter of mechanisms."""
    model, batch = load(auto, repo).eval(), load_file(f"{folder}/inputs.safetensors")
    with torch.no_grad():
        output = main_output(model(**batch))
    expected = load_file(f"{folder}/expected.safetensors")["output"]
    return {"module": type(model).__module__, "difference": (output - expected).abs().max().item()}


def generation(repo: str, folder: str, prompt: str) -> dict:
    model, tokenizer = load("AutoModelForCausalLM", repo), AutoTokenizer.from_pretrained(repo, **TRUST)
    text = pipeline("text-generation", model=repo, **TRUST)(prompt, max_new_tokens=30, do_sample=False)
    ids = tokenizer(prompt, return_tensors="pt")
    options = {"max_new_tokens": 30, "do_sample": False}
    generated = model.generate(**ids, **options)
    model.save_pretrained(f"{folder}/again/repo")
    tokenizer.save_pretrained(f"{folder}/again/repo")
    again = load("AutoModelForCausalLM", f"{folder}/again/repo").generate(**ids, **options)
    beams = model.generate(**ids, **options, num_beams=3)
    return {
        "text": text[0]["generated_text"],
        "decoded": tokenizer.decode(generated[0]),
        "ids": generated[0].tolist(),
        "again": again[0].tolist(),
        "beams": beams[0].tolist(),
        "without cache": model.generate(**ids, **options, use_cache=False)[0].tolist(),
    }


def image_pipeline(repo: str, task: str, image: str) -> list:
    processor = transformers.AutoImageProcessor.from_pretrained(repo, **TRUST)
    found = pipeline(task, model=repo, **TRUST)(image, **({"threshold": 0.0} if task == "object-detection" else {}))
    if task == "image-segmentation":
        found = [{**row, "mask": None} for row in found]
    return [type(processor).__name__, found]


def text_pipeline(repo: str, task: str, prompt: str) -> list:
    return pipeline(task, model=repo, **TRUST)(prompt)


def training(repo: str, auto: str, folder: str) -> dict:
    """Gradient checkpointing changes no gradient; a run that is resumed ends where one in one go does."""
    model = load(auto, repo).train()
    batch = load_file(f"{folder}/inputs.safetensors")

    def gradients():
        model.zero_grad()
        torch.manual_seed(0)
        for name, counter in model.named_buffers():
            if name.endswith("selector.step"):
                counter.zero_()  # so that the same patches are kept
        model(**batch).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    model.gradient_checkpointing_enable()
    checkpointed = gradients()
    rows = [{name: x[i] for name, x in batch.items()} for i in range(len(next(iter(batch.values()))))] * 4

    def train(output, resume=None):
        args = transformers.TrainingArguments(
            output,
            per_device_train_batch_size=2,
            save_steps=2,
            max_steps=4,
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(load(auto, resume or repo), args, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.state_dict()

    whole = train(f"{folder}/run")
    resumed = train(f"{folder}/resumed", resume=f"{folder}/run/checkpoint-2")
    return {
        "gradients": max((plain[name] - checkpointed[name]).abs().max().item() for name in plain),
        "resumed": max((whole[name].float() - resumed[name].float()).abs().max().item() for name in whole),
        "checkpoint": type(load(auto, f"{folder}/run/checkpoint-4")).__name__,
        "same code": code(repo) == code(f"{folder}/run/checkpoint-4"),
    }


def absent_mechanism(repo: str) -> list[str]:
    """What is said of a mechanism that is not in the repository, one that does not fit, and one that is none."""
    said = []
    for attention in ("softmax", "axial", "nonsense"):
        try:
            AutoModel.from_config(AutoConfig.from_pretrained(repo, attention=attention, **TRUST), **TRUST)
        except (ImportError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def refused(repo: str) -> str:
    try:
        AutoModel.from_pretrained(repo)
    except ValueError as error:
        return str(error)
    return "loaded"


def native_mobilevit(repo: str) -> dict:
    from transformers import MobileViTV2Config, MobileViTV2Model

    ours = load("AutoModel", repo)
    native = AutoModel.from_config(MobileViTV2Config(width_multiplier=0.25))
    return {
        "native": type(native) is MobileViTV2Model and type(AutoConfig.for_model("mobilevitv2")) is MobileViTV2Config,
        "ours": type(ours).__name__,
        "backbone": type(AutoBackbone.from_config(ours.config, **TRUST)).__name__,
    }


if __name__ == "__main__":
    gc.freeze()  # or every Trainer looks for garbage among the modules
    results = {}
    for name, case in json.loads(Path(sys.argv[1]).read_text()).items():
        try:
            results[name] = globals()[case.pop("check")](**case)
        except Exception:
            results[name] = traceback.format_exc()
    assert not any(name.partition(".")[0] == "hf_efficient" for name in sys.modules)
    Path(sys.argv[2]).write_text(json.dumps(results))
