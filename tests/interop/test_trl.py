"""Fine-tuning by TRL, supervised and by preferences: the language model learns, whole or by an adapter, and is saved
as it is."""

import math
from importlib.util import find_spec

import pytest
import torch
from interop_models import build, logits
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_efficient.data.tokenization import build_tokenizer

if not find_spec("trl"):  # imported by its test alone
    pytest.skip("pip install hf-efficient[interop]", allow_module_level=True)
peft = pytest.importorskip("peft", reason="pip install hf-efficient[interop]")
pytestmark = pytest.mark.filterwarnings("ignore")

SENTENCE = "the memory of a text is what is left of it"
ARGUMENTS = {
    "max_steps": 8,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "bf16": False,
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
}
either = pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])


@pytest.fixture
def tokenizer():
    tokenizer = build_tokenizer("byte", padding=True)
    tokenizer.eos_token = tokenizer.pad_token  # TRL wants one, ...
    tokenizer.split_special_tokens = False  # ... and writes it behind texts
    assert tokenizer(SENTENCE + tokenizer.eos_token)["input_ids"] == [*SENTENCE.encode(), tokenizer.eos_token_id]
    return tokenizer


def adapter(lora):
    return peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None


def assert_compression_is_as_before(start, model):
    """TRL has a head, and so a loss, of its own."""
    before = {name: p for name, p in start.named_parameters() if ".compression." in name}
    after = {name.removeprefix("base_model.model."): p for name, p in model.named_parameters()}
    assert before and all(torch.equal(after[name], p) for name, p in before.items())


@either
def test_fine_tuning(lora, tokenizer, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    texts = Dataset.from_dict({"text": [SENTENCE[: 20 + i % 20] for i in range(64)]})  # of different lengths
    trainer = SFTTrainer(
        model=build("CompressivePerformer", vocab_size=len(tokenizer)),
        args=SFTConfig(tmp_path / "run", **ARGUMENTS),
        train_dataset=texts,
        processing_class=tokenizer,
        peft_config=adapter(lora),
    )
    trainer.train()
    losses = torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses.isfinite().all() and losses[-2:].mean() < losses[:2].mean() - 0.1
    trainer.save_model(tmp_path / "saved")
    model = trainer.model.eval()
    assert_compression_is_as_before(build("CompressivePerformer", vocab_size=len(tokenizer)), model)
    if lora:
        base = build("CompressivePerformer", vocab_size=len(tokenizer))
        again = peft.PeftModel.from_pretrained(base, tmp_path / "saved")
    else:
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again.eval()), logits(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")(SENTENCE)["input_ids"] == list(SENTENCE.encode())


PREFERENCES = {
    "prompt": [SENTENCE[: 12 + i % 9] for i in range(64)],  # with what follows, two or three segments
    "chosen": ["is long" + "!" * (i % 5) for i in range(64)],
    "rejected": ["was short" + "?" * (i % 3) for i in range(64)],
}


@torch.no_grad()
def log_probability(model, tokenizer, prompt, completion):
    """Of a completion and the end, by itself, without padding."""
    start, ids = (tokenizer(text)["input_ids"] for text in (prompt, prompt + completion))
    ids = torch.tensor([*ids, tokenizer.eos_token_id])
    log_p = model(ids[None]).logits[0, :-1].float().log_softmax(-1)
    return log_p.gather(1, ids[1:, None])[len(start) - 1 :].sum().item()


@either
def test_preferences(lora, tokenizer, tmp_path):
    """Direct preference optimisation: what was chosen gains on what was rejected, measured from where it began."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    start = build("CompressivePerformer", vocab_size=len(tokenizer))
    start.save_pretrained(tmp_path / "start")  # where TRL finds the model to stay close to
    trainer = DPOTrainer(
        model=str(tmp_path / "start"),
        args=DPOConfig(tmp_path / "run", **{**ARGUMENTS, "per_device_train_batch_size": 64, "max_steps": 6}),
        train_dataset=Dataset.from_dict(PREFERENCES),
        processing_class=tokenizer,
        peft_config=adapter(lora),
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logs[0]["loss"] == pytest.approx(math.log(2), abs=1e-5) and logs[-1]["loss"] < 0.5
    assert logs[-1]["rewards/accuracies"] == 1 and logs[-1]["rewards/margins"] > 0.5
    model = trainer.model.eval()
    for name in ("chosen", "rejected"):  # padding, and the head that TRL has instead of ours, change nothing
        pairs = zip(PREFERENCES["prompt"], PREFERENCES[name], strict=True)
        alone = [log_probability(start, tokenizer, *pair) for pair in pairs]
        assert logs[0][f"logps/{name}"] == pytest.approx(sum(alone) / 64, rel=1e-4)
    assert_compression_is_as_before(start, model)
    trainer.save_model(tmp_path / "saved")
    if lora:
        again = peft.PeftModel.from_pretrained(build("CompressivePerformer", vocab_size=257), tmp_path / "saved")
    else:
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        ids = torch.tensor([tokenizer("the memory ")["input_ids"]])
        assert again.generate(ids, max_new_tokens=3).shape == (1, ids.shape[1] + 3)
    assert torch.equal(logits(again.eval()), logits(model))
