"""The models under test: a tiny config of every family, and every head that its Auto classes serve."""

from dataclasses import fields

import torch

import hf_efficient
from hf_efficient.models.auto import FAMILIES

# Small values of transformers' usual words: a family takes those that its config has.
SMALL = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
# What a family needs beside them to be small, or to do what it is for.
OWN = {
    "hugginggreen_vit": {"heuristic": "variance", "top_k": 9, "num_queries": 4},
    "mobilevit_v2": {
        "image_size": 64,
        "patch_size": 2,
        "width_multiplier": 0.25,
        "n_attn_blocks": [1, 1, 1],
        "base_attn_unit_dims": [64, 64, 64],
        "aspp_out_channels": 16,
    },
    "imagesig": {"stem_channels": 8, "signature_depth": 3, "pooler_output_size": 12, "two_directions": True},
    "kerformer_text": {"max_position_embeddings": 40, "hidden_dropout_prob": 0.0},
    "compressive_performer": {
        **{"hidden_size": 16, "intermediate_size": 16},
        **{"segment_length": 8, "memory_length": 8, "compressed_memory_length": 4, "compression_rate": 2},
    },
}
VISION = [name for name in FAMILIES if FAMILIES[name].processor is not None]
TEXT = [name for name in FAMILIES if "AutoModelForSequenceClassification" in FAMILIES[name].models]
HEADS = [(family, auto) for family in (*VISION, *TEXT) for auto in FAMILIES[family].models if auto != "AutoBackbone"]
VISION_HEADS = [head for head in HEADS if head[0] in VISION]
CLASSIFIERS = {
    **dict.fromkeys(VISION, "AutoModelForImageClassification"),
    **dict.fromkeys(TEXT, "AutoModelForSequenceClassification"),
}


def head_id(head) -> str:
    family, auto = head
    return f"{family}-{FAMILIES[family].models[auto]}"


def tiny_fields(family: str) -> dict:
    known = {field.name for field in fields(getattr(hf_efficient, FAMILIES[family].config))}
    labels = {"num_labels": 5} if family in CLASSIFIERS else {}
    return {**{name: value for name, value in SMALL.items() if name in known}, **labels, **OWN.get(family, {})}


def tiny_config(family: str, **values):
    return getattr(hf_efficient, FAMILIES[family].config)(**{**tiny_fields(family), **values})


def tiny_model(family: str, auto: str = "AutoModel", **values):
    torch.manual_seed(0)
    return getattr(hf_efficient, FAMILIES[family].classes()[auto])(tiny_config(family, **values)).eval()


def stirred(family: str, auto: str, **values):
    """With every parameter moved off its initial value, so that no-ops at the start are not tested."""
    model = tiny_model(family, auto, **values)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    return model


def images(config, batch: int = 3):
    size = config.image_size
    return torch.randn(batch, config.num_channels, size, size, generator=torch.Generator().manual_seed(1))


def texts(config, batch: int = 3):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch, config.max_position_embeddings // 2), generator=generator)


def inputs(model, batch: int = 3, labels: bool = False) -> dict:
    """A batch, with what the head needs to compute a loss if asked."""
    config, name = model.config, type(model).__name__
    generator = torch.Generator().manual_seed(2)
    if hasattr(config, "image_size"):
        batch_inputs = {"pixel_values": images(config, batch)}
    else:
        batch_inputs = {"input_ids": texts(config, batch)}
        batch_inputs["attention_mask"] = torch.ones_like(batch_inputs["input_ids"])
        batch_inputs["attention_mask"][0, -5:] = 0
    if name.endswith("ForMaskedImageModeling"):
        batch_inputs["bool_masked_pos"] = torch.rand(batch, config.num_patches, generator=generator) < 0.5
    elif labels and name.endswith("ForMaskedLM"):
        batch_inputs["labels"] = batch_inputs["input_ids"].flip(1)
    elif labels and name.endswith(("ForImageClassification", "ForSequenceClassification")):
        batch_inputs["labels"] = torch.randint(config.num_labels, (batch,), generator=generator)
    elif labels and name.endswith("ForSemanticSegmentation"):
        shape = (batch, config.image_size, config.image_size)
        batch_inputs["labels"] = torch.randint(config.num_labels, shape, generator=generator)
    elif labels and name.endswith("ForObjectDetection"):
        batch_inputs["labels"] = [
            {"class_labels": torch.tensor([i % config.num_labels]), "boxes": torch.tensor([[0.5, 0.4, 0.3, 0.2]])}
            for i in range(batch)
        ]
    return batch_inputs


def main_output(output) -> torch.Tensor:
    """What the head is for."""
    for name in ("logits", "reconstruction", "last_hidden_state"):
        if output.get(name) is not None:
            return output[name]
    raise AssertionError(f"no main output among {list(output)}")
