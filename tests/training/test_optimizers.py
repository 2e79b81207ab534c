"""Muon with AdamW: which weights go where, equal to torch's own optimizers, and in a Trainer like any other."""

import pytest
import torch
from runs import DEFAULTS, KillAt, Killed, assert_same, make_trainer, outcome, tiny_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
from transformers.pytorch_utils import Conv1D

from hf_efficient import (
    CompressivePerformerConfig,
    CompressivePerformerForCausalLM,
    MobileViTv2Config,
    MobileViTv2ForImageClassification,
)
from hf_efficient.data.collators import take_batch
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.errors import RunError
from hf_efficient.training.optimizers import hidden_matrices, muon_with_adamw, orthogonal

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 10)
        self.c_attn, self.conv = Conv1D(18, 6), nn.Conv2d(6, 4, 1)  # q, k and v in one, stored (in, out)
        self.table = nn.Parameter(torch.randn(5, 6))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(7, 6), nn.ModuleList([Block()]), nn.Linear(6, 3)


def with_gradients(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


def test_every_matrix_moves_as_torch_moves_it_alone():
    torch.manual_seed(0)
    model, options = Model(), {"lr": 0.01, "weight_decay": 0.1}
    block = model.blocks[0]
    alone = [block.fc.weight, block.conv.weight.flatten(1), *block.c_attn.weight.split(6, 1)]
    alone = [nn.Parameter(part.detach().clone()) for part in alone]
    others = {
        name: nn.Parameter(p.detach().clone())
        for name, p in model.named_parameters()
        if name not in hidden_matrices(model)
    }
    decayed = [p for p in others.values() if p.dim() > 1]
    plain = [p for p in others.values() if p.dim() < 2]
    ours = muon_with_adamw(model, **options)
    muon = torch.optim.Muon(alone, adjust_lr_fn="match_rms_adamw", **options)
    adamw = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], **options)
    for step in range(3):
        with_gradients(model, step)
        parts = [block.fc.weight.grad, block.conv.weight.grad.flatten(1), *block.c_attn.weight.grad.split(6, 1)]
        for parameter, gradient in zip(alone, parts, strict=True):
            parameter.grad = gradient.clone()
        for name, parameter in others.items():
            parameter.grad = model.get_parameter(name).grad.clone()
        for optimizer in (ours, muon, adamw):
            optimizer.step()
    found = [block.fc.weight, block.conv.weight.flatten(1), *block.c_attn.weight.split(6, 1)]
    for got, expected in zip(found, alone, strict=True):  # torch's is in bfloat16
        torch.testing.assert_close(got, expected, atol=2e-3 * 0.2 * max(got.shape) ** 0.5, rtol=0)
    for name, expected in others.items():
        torch.testing.assert_close(model.get_parameter(name), expected, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("model", "matrices", "cuts"),
    [
        (lambda: tiny_model(), {"q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"}, {1}),
        (
            lambda: ViTForImageClassification(ViTConfig(**SMALL, image_size=8, patch_size=4)),
            {"q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"},
            {1},
        ),
        (
            lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=20)),
            {"c_attn", "c_proj", "c_fc"},
            {1, 3},
        ),
        (
            lambda: CompressivePerformerForCausalLM(CompressivePerformerConfig(**SMALL, vocab_size=20)),
            {"qkv_proj", "o_proj", "fc1", "fc2"},
            {1, 3},
        ),
        (
            lambda: MobileViTv2ForImageClassification(MobileViTv2Config(image_size=32, width_multiplier=0.5)),
            {"convolution"},
            {1, 3},
        ),
    ],
    ids=["hugginggreen", "vit", "gpt2", "compressive_performer", "mobilevit_v2"],
)
def test_hidden_matrices_are_those_of_the_blocks(model, matrices, cuts):
    found = hidden_matrices(model := model())
    assert {name.split(".")[-2] for name in found} == matrices
    assert {len(sizes) for _, _, sizes in found.values()} == cuts
    for name, (weight, dim, sizes) in found.items():
        assert weight is model.get_parameter(name) and weight.flatten(1).dim() == 2
        assert weight.shape[dim] == sum(sizes)


def test_queries_keys_and_values_of_unequal_sizes_are_taken_apart():
    """A mixture of keys has several per head; in LSH attention keys are queries."""
    mixture = {"attention": "gaussian_mixture", "attention_options": {"keys": "multi"}}
    for fields, expected in ((mixture, [16, 32, 16]), ({"attention": "lsh"}, [16, 16])):
        model = CompressivePerformerForCausalLM(CompressivePerformerConfig(**SMALL, vocab_size=20, **fields))
        _, dim, sizes = hidden_matrices(model)["model.layers.0.memory_attention.qkv_proj.weight"]
        assert (dim, sizes) == (1, expected)


def test_a_frozen_matrix_and_one_without_gradient_stay():
    model = with_gradients(Model())
    model.blocks[0].fc.weight.requires_grad_(False)
    model.blocks[0].conv.weight.grad = None
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    muon_with_adamw(model, lr=0.1).step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert set(before) - moved == {"blocks.0.fc.weight", "blocks.0.conv.weight"}


def test_resume_is_exact(tmp_path):
    options = {"optim": "muon", "learning_rate": 3e-3, "decay_share": 0.5, "warmup_steps": 0.1}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    with pytest.raises(Killed):
        make_trainer(tmp_path / "killed", KillAt(8), **options).train()
    resumed = make_trainer(tmp_path / "killed", **options)
    resumed.train(resume_from_checkpoint=True)
    assert_same(outcome(resumed), outcome(whole))
    assert whole.args.optim == "muon" and len(whole.optimizer.param_groups) == 3


def test_the_learning_rate_is_level_and_then_falls_to_nothing(tmp_path):
    trainer = make_trainer(tmp_path, optim="muon", decay_share=0.4, warmup_steps=0.2, logging_steps=1)
    trainer.train()
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    top = DEFAULTS["learning_rate"]
    assert len(rates) == 15 and rates[0] < top
    assert rates[3:9] == pytest.approx([top] * 6) and rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(top / 6)  # of the last step; the one after it would have 0


def test_it_works_in_a_plain_trainer(tmp_path):
    model, ours = tiny_model(), make_trainer(tmp_path)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = Trainer(
        model,
        TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, remove_unused_columns=False, disable_tqdm=True),
        train_dataset=ours.train_dataset,
        data_collator=take_batch,
        optimizers=(muon_with_adamw(model, lr=1e-2), None),
    )
    trainer.train()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4), (1, 1, 5)])
def test_steps_are_nearly_orthogonal(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonal(matrices)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ found @ v.mT  # diagonal in the matrix's own directions
    values = inner.diagonal(dim1=1, dim2=2)
    assert (inner - torch.diag_embed(values)).abs().max() < 1e-4
    assert values.min() > 0.3 and values.max() < 1.3


def test_shards_are_refused():
    sharded = Model()
    sharded.blocks[0].fc.weight.placements = ()  # as a DTensor has them
    with pytest.raises(RunError, match="whole matrices"):
        muon_with_adamw(sharded, lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optim": "muonn"}, "muonn"),
        ({"decay_share": 0.0}, "decay_share=0.0 must be above 0"),
        ({"decay_share": 0.5, "lr_scheduler_type": "cosine"}, "is for lr_scheduler_type: linear"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        EfficientTrainingArguments(str(tmp_path), **arguments)
