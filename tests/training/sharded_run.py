"""A few steps of each family with weights sharded over the processes (FSDP2), stopped and taken up again half-way.

What every rank has is put together and saved in <folder>/<family>.
"""

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import hf_efficient

VIT = {
    **{"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 16, "num_labels": 3, "qkv_bias": False},
}
MODELS = {
    "HuggingGreenViTForImageClassification": {**VIT, "top_k": 8, "prob": 1.0, "prob_schedule": "constant"},
    "KerformerViTForImageClassification": VIT,
    "MobileViTv2ForImageClassification": {
        **{"image_size": 32, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1]},
        **{"base_attn_unit_dims": [32, 32, 32], "num_labels": 3},
    },
    "CompressivePerformerForCausalLM": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16},
        **{"segment_length": 8, "memory_length": 8, "compressed_memory_length": 4, "compression_rate": 2},
    },
}
STEPS, ROWS = 2, 8  # in a batch of all ranks
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def build(name: str):
    torch.manual_seed(0)
    config = getattr(hf_efficient, name.partition("For")[0] + "Config")(**MODELS[name])
    model = getattr(hf_efficient, name)(config).train()
    for module in model.modules():  # whose statistics would be those of each rank's own images
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def batch(model, step: int, rank: int = 0, ranks: int = 1) -> dict:
    generator, mine = torch.Generator().manual_seed(step), slice(rank, None, ranks)
    if model.main_input_name == "input_ids":
        tokens = torch.randint(0, 256, (ROWS, 30), generator=generator)[mine]
        return {"input_ids": tokens, "labels": tokens}
    size = model.config.image_size
    return {
        "pixel_values": torch.randn(ROWS, 3, size, size, generator=generator)[mine],
        "labels": torch.randint(0, 3, (ROWS,), generator=generator)[mine],
    }


def steps(model, optimizer, numbers, **rank) -> None:
    for step in numbers:
        model(**batch(model, step, **rank)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def shard(model):
    for module in list(model.modules()):
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module)
    return fully_shard(model)


def main(folder: str) -> None:
    distributed.init_process_group("gloo")
    rank = {"rank": distributed.get_rank(), "ranks": distributed.get_world_size()}
    for name in MODELS:
        model = shard(build(name))
        assert all(isinstance(p, DTensor) for p in model.parameters())
        optimizer = optimizer_of(model)
        steps(model, optimizer, range(STEPS // 2), **rank)
        kept = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
        again = shard(build(name))
        resumed = optimizer_of(again)
        set_state_dict(again, resumed, model_state_dict=kept[0], optim_state_dict=kept[1], options=WHOLE)
        steps(again, resumed, range(STEPS // 2, STEPS), **rank)
        weights, _ = get_state_dict(again, resumed, options=WHOLE)
        if rank["rank"] == 0:
            again.save_pretrained(Path(folder) / name, state_dict=weights)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
