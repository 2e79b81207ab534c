"""Tiny models of transformers, one of each kind that `convert_attention` takes, and inputs with padding."""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DeiTConfig,
    DeiTForImageClassification,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTModel,
)

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
WORDS = {"vocab_size": 50, "max_position_embeddings": 64}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

MAKERS = {
    "bert": lambda: BertForSequenceClassification(BertConfig(num_labels=3, **WORDS, **SIZES)),
    "roberta": lambda: RobertaModel(RobertaConfig(**WORDS, **SIZES)),
    "distilbert": lambda: DistilBertModel(DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, **WORDS)),
    "vit": lambda: ViTModel(ViTConfig(image_size=32, patch_size=8, **SIZES)),
    "deit": lambda: DeiTForImageClassification(DeiTConfig(image_size=32, patch_size=8, **SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4, **SPECIAL)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **WORDS, **SIZES, **SPECIAL)),
}
QUERIES_AND_KEYS = ("q_proj", "k_proj", "query", "key", "q_lin", "k_lin", "c_attn")
IMAGES, CAUSAL = ("vit", "deit"), ("gpt2", "llama")


def make(kind: str):
    """In evaluation, with weights as large as a trained model's: at 0.02 all attention is nearly a mean."""
    torch.manual_seed(0)
    model = MAKERS[kind]().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 and "embed" not in name and "wte" not in name and "wpe" not in name:
                p.mul_(20 if any(part in name for part in QUERIES_AND_KEYS) else 8)
    return model


def inputs(kind: str, seed: int = 0) -> dict:
    """Of two samples, the second with padding."""
    generator = torch.Generator().manual_seed(seed)
    if kind in IMAGES:
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    return {"input_ids": torch.randint(3, 50, (2, 10), generator=generator), "attention_mask": mask}
