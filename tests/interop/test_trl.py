"""Supervised fine-tuning by TRL: the language model learns, whole or by an adapter, and is saved as it is."""

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


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_fine_tuning(lora, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tokenizer = build_tokenizer("byte", padding=True)
    tokenizer.eos_token = tokenizer.pad_token  # TRL wants one
    texts = Dataset.from_dict({"text": [SENTENCE[: 20 + i % 20] for i in range(64)]})  # of different lengths
    trainer = SFTTrainer(
        model=build("CompressivePerformer", vocab_size=len(tokenizer)),
        args=SFTConfig(
            tmp_path / "run",
            max_steps=8,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            bf16=False,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=texts,
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
    )
    trainer.train()
    losses = torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses.isfinite().all() and losses[-2:].mean() < losses[:2].mean() - 0.1
    trainer.save_model(tmp_path / "saved")
    model = trainer.model.eval()
    if lora:
        base = build("CompressivePerformer", vocab_size=len(tokenizer))
        again = peft.PeftModel.from_pretrained(base, tmp_path / "saved")
    else:
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again.eval()), logits(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")(SENTENCE)["input_ids"] == list(SENTENCE.encode())
