"""Training: systems learn a text, and compressed memory carries what lies beyond segment and recent memory."""

import math
import pydoc_data.topics

import pytest
import torch
import yaml
from compressive_performer_cases import CONFIGS
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from hf_efficient import CompressivePerformerConfig, CompressivePerformerForCausalLM

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "segment_length": 32}
# The gradients of every system are held to the literal algorithm's: two that have little in common show that they do.
SYSTEMS = ("compressive_performer", "gpt")


def corpus():
    """(16, n): streams of English bytes."""
    data = "".join(pydoc_data.topics.topics.values()).encode()[:20_000]
    return torch.tensor(list(data)).view(16, -1)


def entropy(tokens):
    """Of the unigram distribution, in nats."""
    share = tokens.flatten().bincount().double() / tokens.numel()
    return -(share[share > 0] * share[share > 0].log()).sum().item()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_learns_more_than_letter_frequencies(system):
    torch.manual_seed(1)
    fields = yaml.safe_load((CONFIGS / f"enwik8_{system}.yaml").read_text())["model"]
    memory = {"memory_length": 32 * bool(fields["memory_length"])}
    memory["compressed_memory_length"] = 16 * bool(fields["compressed_memory_length"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**fields, **SMALL, **memory})).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    tokens, memory, losses = corpus(), None, []
    for start in [*range(0, 32 * 39, 32)] * 3:
        part, memory = tokens[:, start : start + 33], memory if start else None
        outputs = model(part[:, :-1], shift_labels=part[:, 1:].contiguous(), memory=memory, use_cache=False)
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        memory = outputs.memory
        losses.append(outputs.lm_loss.item())
    assert losses[0] > math.log(256) - 0.3
    assert sum(losses[-20:]) / 20 < entropy(tokens) - 0.2


CLASSES, FILLERS, QUESTION = 4, 4, 8


def riddle(batch, generator):
    """A secret told in the first of four segments, fillers in the next two, and asked for in the last."""
    secret = torch.randint(CLASSES, (batch, 1), generator=generator)
    fillers = CLASSES + torch.randint(FILLERS, (batch, 16), generator=generator)
    question = torch.full((batch, 1), QUESTION)
    return torch.cat([secret.expand(batch, 8), fillers, question], 1), secret[:, 0]


def solve(steps=60, **fields):
    """The share of new riddles that a model solves after training on others."""
    torch.manual_seed(0)
    config = CompressivePerformerConfig(
        **{
            **{"vocab_size": 9, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"segment_length": 8, "memory_length": 8, "compressed_memory_length": 8, "compression_rate": 2},
            **fields,
        }
    )
    model, generator = CompressivePerformerForCausalLM(config).train(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        ids, secret = riddle(32, generator)
        labels = torch.full_like(ids, -100)
        labels[:, -1] = secret
        model(ids, shift_labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    ids, secret = riddle(200, generator)
    with torch.no_grad():
        answers = model.eval()(ids, logits_to_keep=1).logits[:, -1].argmax(-1)
    return (answers == secret).double().mean().item()


@pytest.mark.parametrize(
    ("attention", "compression"),
    [("performer", "conv"), ("performer", "autoencoder"), ("softmax", "conv"), ("softmax", "mean")],
)
def test_compressed_memory_carries_the_answer(attention, compression):
    assert solve(attention=attention, compression=compression) > 0.95


@pytest.mark.parametrize("attention", ["performer", "softmax"])
def test_without_compressed_memory_there_is_none(attention):
    assert solve(attention=attention, compressed_memory_length=0) < 0.5


def test_the_trainer_trains_and_evaluates(tmp_path):
    """transformers' own Trainer, gradient accumulation included; `memory` stays out of what it gathers."""
    torch.manual_seed(0)
    model = CompressivePerformerForCausalLM(
        CompressivePerformerConfig(**SMALL, memory_length=32, compressed_memory_length=16)
    )
    rows = [{"input_ids": row, "labels": row} for row in corpus()[:, :96]]
    arguments = TrainingArguments(
        output_dir=tmp_path,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4], compute_metrics=shapes)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    found = trainer.evaluate()
    assert found["eval_loss"] < before - 0.1
    assert found["eval_shape"] == [4, 96, 256]


def shapes(prediction):
    return {"shape": list(prediction.predictions.shape)}
