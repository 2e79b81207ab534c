"""What is saved here loads where hf_efficient is not installed: in one process that can't import it, all cases."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from families import CLASSIFIERS, HEADS, TEXT, VISION, head_id, inputs, main_output, tiny_config, tiny_model
from filelock import FileLock
from PIL import Image
from safetensors.torch import save_file
from transformers import (
    MobileViTConfig,
    MobileViTForImageClassification,
    MobileViTV2Config,
    MobileViTV2ForImageClassification,
    pipeline,
)

from hf_efficient import (
    CompressivePerformerConfig,
    CompressivePerformerForCausalLM,
    KerformerTextForSequencePairClassification,
    image_processor_for,
)
from hf_efficient.attention import get_attention, list_attentions
from hf_efficient.data.tokenization import build_tokenizer
from hf_efficient.models.auto import FAMILIES

pytestmark = pytest.mark.slow  # dozens of repositories, one process

CLIENT = Path(__file__).with_name("remote_code_client.py")
LM = {
    "vocab_size": 256,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "segment_length": 8,
    "memory_length": 8,
    "compressed_memory_length": 6,
    "compression_rate": 2,
}
CLASSIFIER = "AutoModelForImageClassification"
RECIPE = {
    **{"stem": "conv", "qk_norm": True, "zero_init_outputs": True, "heuristic": "random", "select_at_eval": True},
    "token_pooling": {"after": [1], "keep": 0.7},
}
PIPELINES = {
    "image-classification": [(family, "AutoModelForImageClassification") for family in VISION],
    "object-detection": [head for head in HEADS if head[1] == "AutoModelForObjectDetection"],
    "image-segmentation": [head for head in HEADS if head[1] == "AutoModelForSemanticSegmentation"],
}
ALL_PIPELINES = [(task, *head) for task, heads in PIPELINES.items() for head in heads]
TEXT_PIPELINES = {
    "text-classification": ("AutoModelForSequenceClassification", "text-classification", "A film to see."),
    "fill-mask": ("AutoModelForMaskedLM", "fill-mask", "A fi<mask>m to see."),
}
PHOTO = "photo.png"
PROMPT = "The segments of a long text "
TRAINED = {
    **CLASSIFIERS,
    "compressive_performer": "AutoModelForCausalLM",
}


def grown(model, by: float = 0.05):
    """Every parameter away from where a fresh initialisation could hit it by chance."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * by)
    return model.eval()


def language_model(**fields):
    torch.manual_seed(0)
    return grown(CompressivePerformerForCausalLM(CompressivePerformerConfig(**{**LM, **fields})))


def talkative_model():
    torch.manual_seed(0)
    return grown(CompressivePerformerForCausalLM(CompressivePerformerConfig(**LM, tie_word_embeddings=False)), by=0.5)


def token_ids(batch: int = 3):
    return {"input_ids": torch.randint(256, (batch, 21), generator=torch.Generator().manual_seed(1))}


class Cases:
    """Repositories with the questions about them."""

    def __init__(self, root: Path):
        self.root, self.cases = root, {}

    def head(self, name: str, model, auto: str, batch: dict, check: str = "head", folder: str = "repo") -> None:
        repo = self.save(name, model, batch, folder)
        with torch.no_grad():
            output = main_output(model(**batch)).contiguous()
        save_file({"output": output}, repo.parent / "expected.safetensors")
        self.ask(name, check, repo=repo, auto=auto, folder=repo.parent)

    def save(self, name: str, model, batch: dict | None = None, folder: str = "repo") -> Path:
        repo = self.root / name.replace(" ", "-") / folder
        model.save_pretrained(repo)
        save_file(batch or {}, repo.parent / "inputs.safetensors")
        return repo

    def ask(self, name: str, check: str, **arguments) -> None:
        self.cases[name] = {"check": check, **{k: str(v) for k, v in arguments.items()}}

    def ask_client(self, bare) -> None:
        given, found = self.root / "cases.json", self.root / "results.json"
        given.write_text(json.dumps(self.cases))
        environment = {**os.environ, "HF_MODULES_CACHE": str(self.root / "modules"), "PYTHONPATH": ""}
        run = bare.run(CLIENT, given, found, env=environment, stdin=subprocess.DEVNULL, cwd=self.root, timeout=900)
        assert run.returncode == 0, run.stderr


@pytest.fixture(scope="module")
def asked(common_folder, bare) -> tuple[dict, dict]:
    """Cases and answers, once for all of pytest's workers."""
    root = common_folder / "remote_code"
    with FileLock(f"{root}.lock"):
        if not (root / "results.json").exists():
            root.mkdir(exist_ok=True)
            Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(root / PHOTO)
            all_cases(root).ask_client(bare)
    return tuple(json.loads((root / file).read_text()) for file in ("cases.json", "results.json"))


@pytest.fixture(scope="module")
def cases(asked) -> dict:
    return asked[0]


@pytest.fixture(scope="module")
def answers(asked) -> dict:
    return asked[1]


def all_cases(root: Path) -> Cases:
    cases = Cases(root)
    for head in HEADS:
        model = grown(tiny_model(*head))
        cases.head(head_id(head), model, head[1], inputs(model))
    for name in list_attentions():
        fields = {"attention": name, "attention_options": {"window": 2} if name == "window" else {}}
        if get_attention(name).needs_grid:
            fields["use_cls_token"] = False
        model = grown(tiny_model("kerformer_vit", "AutoModelForImageClassification", **fields))
        cases.head(f"attention {name}", model, "AutoModelForImageClassification", inputs(model), "mechanism")
    model = grown(tiny_model("hugginggreen_vit", CLASSIFIER, **RECIPE))
    cases.head("recipe", model, CLASSIFIER, inputs(model))
    cases.head("language model", language_model(), "AutoModelForCausalLM", token_ids())
    cases.head("language model of softmax", language_model(attention="softmax"), "AutoModelForCausalLM", token_ids())
    text = cases.save("generation", talkative_model())
    build_tokenizer("byte").save_pretrained(text)
    cases.ask("generation", "generation", repo=text, folder=text.parent, prompt=PROMPT)
    # In a folder of its own name: for one config class transformers keeps the model class that it has loaded first.
    cases.head("pairs of texts", *pair_model(), folder="pairs")
    for name, (auto, task, prompt) in TEXT_PIPELINES.items():
        repo = cases.save(name, grown(tiny_model(TEXT[0], auto)))
        build_tokenizer("byte", padding=True, mask=True).save_pretrained(repo)
        cases.ask(name, "text_pipeline", repo=repo, task=task, prompt=prompt)
    for task, family, auto in ALL_PIPELINES:
        model = grown(tiny_model(family, auto))
        repo = cases.save(f"{task} {family}", model)
        image_processor_for(model.config, task).save_pretrained(repo)
        cases.ask(f"{task} {family}", "image_pipeline", repo=repo, task=task, image=root / PHOTO)
    for family, auto in TRAINED.items():
        if family in CLASSIFIERS:
            model = grown(tiny_model(family, auto))
            batch = inputs(model, 4, labels=True)
        else:
            model, batch = language_model(), token_ids(4)
            batch["labels"] = batch["input_ids"].clone()
        repo = cases.save(f"training {family}", model, batch)
        cases.ask(f"training {family}", "training", repo=repo, auto=auto, folder=repo.parent)
    for version, model in native_mobilevits(cases.root / "native").items():
        cases.head(f"from native {version}", model, "AutoModelForImageClassification", pixels())
    repo = cases.root / "kerformer_vit-Model" / "repo"
    cases.ask("absent", "absent_mechanism", repo=repo)
    cases.ask("refused", "refused", repo=repo)
    cases.ask("native", "native_mobilevit", repo=cases.root / "mobilevit_v2-Model" / "repo")
    return cases


def pixels() -> dict:
    return {"pixel_values": torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))}


def pair_model() -> tuple:
    torch.manual_seed(0)
    model = grown(KerformerTextForSequencePairClassification(tiny_config("kerformer_text")))
    ids = torch.randint(200, (3, 2, 9), generator=torch.Generator().manual_seed(1))
    return model, "AutoModelForSequenceClassification", {"input_ids": ids}


def native_mobilevits(folder: Path) -> dict:
    """Checkpoints of transformers' own MobileViTV2 and MobileViT, loaded into ours."""
    from hf_efficient import MobileViTv2ForImageClassification

    second = MobileViTV2Config(
        image_size=64, width_multiplier=0.25, n_attn_blocks=[1, 1, 1], base_attn_unit_dims=[64, 64, 64], num_labels=5
    )
    first = MobileViTConfig(
        image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16], num_labels=5
    )
    MobileViTV2ForImageClassification(second).save_pretrained(folder / "v2")
    MobileViTForImageClassification(first).save_pretrained(folder / "v1")
    load = MobileViTv2ForImageClassification.from_pretrained
    return {version: grown(load(folder / version)) for version in ("v1", "v2")}


def answer(answers, name):
    found = answers[name]
    assert not isinstance(found, str) or not found.startswith("Traceback"), found
    return found


def check_outputs(found: dict) -> None:
    assert found["module"].startswith("transformers_modules.")
    assert found["difference"] < 1e-6


def check_head(found: dict, prefix: str) -> None:
    check_outputs(found)
    assert found["same code"] and found["same map"]
    assert found["base"] == found["inner"] == f"{prefix}Model"


@pytest.mark.parametrize("head", HEADS, ids=head_id)
def test_a_head_loads_and_is_saved_again(answers, head):
    found = answer(answers, head_id(head))
    check_head(found, FAMILIES[head[0]].prefix)
    assert found["default"] == tiny_config(head[0]).attention


@pytest.mark.parametrize("name", list_attentions())
def test_every_mechanism_loads(answers, cases, name):
    check_outputs(answer(answers, f"attention {name}"))
    files = {file.stem for file in Path(cases[f"attention {name}"]["repo"]).glob("attention_*.py")}
    assert f"attention_{name}" in files


def test_a_recipes_options_load(answers):
    check_head(answer(answers, "recipe"), "HuggingGreenViT")


@pytest.mark.parametrize("name", ["language model", "language model of softmax"])
def test_the_language_model_loads(answers, name):
    check_head(answer(answers, name), "CompressivePerformer")


def test_a_pair_model_is_what_its_auto_class_loads(answers):
    check_head(answer(answers, "pairs of texts"), "KerformerText")


@pytest.mark.parametrize("name", TEXT_PIPELINES)
def test_a_pipeline_of_texts_says_the_same(answers, cases, name):
    _, task, prompt = TEXT_PIPELINES[name]
    assert answer(answers, name) == pipeline(task, model=cases[name]["repo"])(prompt)


def test_generation_with_its_memory(answers, cases):
    found = answer(answers, "generation")
    model, tokenizer = talkative_model(), build_tokenizer("byte")
    ids = tokenizer(PROMPT, return_tensors="pt")
    expected = model.generate(**ids, max_new_tokens=30, do_sample=False)[0]
    assert len(set(expected[-30:].tolist())) > 3
    assert found["ids"] == found["again"] == found["without cache"] == expected.tolist()
    assert found["text"] == found["decoded"] == tokenizer.decode(expected)
    assert found["beams"] == model.generate(**ids, max_new_tokens=30, do_sample=False, num_beams=3)[0].tolist()


@pytest.mark.parametrize(("task", "family", "auto"), ALL_PIPELINES)
def test_a_pipeline_says_the_same(answers, cases, task, family, auto):
    processor, found = answer(answers, f"{task} {family}")
    assert processor.endswith("ImageProcessorPil")
    case = cases[f"{task} {family}"]
    options = {"threshold": 0.0} if task == "object-detection" else {}
    expected = pipeline(task, model=case["repo"])(case["image"], **options)
    assert len(found) == len(expected) > 0
    for row, right in zip(found, expected, strict=True):
        assert row["label"] == right["label"] and row["score"] == right["score"]


@pytest.mark.parametrize("family", TRAINED)
def test_training_goes_on(answers, family):
    found = answer(answers, f"training {family}")
    assert found["gradients"] < 1e-6
    assert found["resumed"] < 1e-6
    assert found["checkpoint"] == FAMILIES[family].classes()[TRAINED[family]]
    assert found["same code"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_came_from_a_native_checkpoint(answers, version):
    check_head(answer(answers, f"from native {version}"), "MobileViTv2")


def test_a_mechanism_that_is_not_there(answers):
    absent, misfit, unknown = answer(answers, "absent")
    assert absent.startswith("ImportError: the code of 'softmax' attention is not in this repository")
    assert "needs a grid of patches without CLS" in misfit and "softmax" in misfit
    assert "attention='nonsense' is unknown; known: axial, " in unknown


def test_without_the_flag_it_is_refused(answers):
    assert "trust_remote_code=True" in answer(answers, "refused")


def test_transformers_keeps_its_own_mobilevitv2(answers):
    expected = {"native": True, "ours": "MobileViTv2Model", "backbone": "MobileViTv2Backbone"}
    assert answer(answers, "native") == expected
