"""A tiny model of every family, with every parameter moved off its initial value, and something to feed it."""

import torch

import hf_efficient
from hf_efficient import CompressivePerformerConfig, CompressivePerformerForCausalLM

VIT = {
    **{"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 48, "num_labels": 5},
}
MOBILE = {
    **{"image_size": 64, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "base_attn_unit_dims": [64, 64, 64]},
    **{"num_labels": 5},
}
LM = {
    **{"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 48, "segment_length": 16, "memory_length": 16, "compressed_memory_length": 8},
    **{"compression_rate": 2},
}
VISION = {
    "HuggingGreenViT": {**VIT, "heuristic": "variance", "top_k": 9, "select_at_eval": True},
    "KerformerViT": VIT,
    "MobileViTv2": MOBILE,
}
FAMILIES = (*VISION, "CompressivePerformer")


def build(family: str, **fields):
    """A classifier, or the language model."""
    torch.manual_seed(0)
    if family == "CompressivePerformer":
        model = CompressivePerformerForCausalLM(CompressivePerformerConfig(**{**LM, **fields}))
    else:
        config = getattr(hf_efficient, f"{family}Config")(**{**VISION[family], **fields})
        model = getattr(hf_efficient, f"{family}ForImageClassification")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def text(batch: int = 2, length: int = 70) -> torch.Tensor:
    """Long enough for memory and compressed memory to be full."""
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(1))


def inputs(model, labels: bool = False) -> dict:
    config, generator = model.config, torch.Generator().manual_seed(1)
    if config.model_type == "compressive_performer":
        return {"input_ids": text(), **({"labels": text()} if labels else {})}
    batch = {"pixel_values": torch.randn(3, 3, config.image_size, config.image_size, generator=generator)}
    return batch | ({"labels": torch.tensor([0, 3, 1])} if labels else {})


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(**inputs(model)).logits
