"""Tiny models of every family, and what they say; `build` needs hf_efficient, `outputs` does not."""

import torch

VIT = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LM = {
    **{"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "segment_length": 8},
    **{"memory_length": 8, "compressed_memory_length": 6, "compression_rate": 2},
}


def build(name: str) -> list:
    """A model with weights of its own, and its processor or tokenizer."""
    import transformers

    import hf_efficient
    from hf_efficient.data.tokenization import build_tokenizer

    torch.manual_seed(0)
    if name == "vit":
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT, intermediate_size=48))
        parts = [model, transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})]
    elif name == "gpt2":
        config = transformers.GPT2Config(vocab_size=256, n_embd=16, n_layer=2, n_head=2, n_positions=64)
        parts = [transformers.GPT2LMHeadModel(config), build_tokenizer("byte")]
    elif name == "compressive_performer":
        config = hf_efficient.CompressivePerformerConfig(**LM)
        parts = [hf_efficient.CompressivePerformerForCausalLM(config), build_tokenizer("byte")]
    else:
        prefix = {
            "kerformer_vit": "KerformerViT",
            "hugginggreen_vit": "HuggingGreenViT",
            "mobilevit_v2": "MobileViTv2",
        }
        fields = {"image_size": 64, "width_multiplier": 0.25} if name == "mobilevit_v2" else VIT
        config = getattr(hf_efficient, f"{prefix[name]}Config")(**fields, num_labels=3)
        model = getattr(hf_efficient, f"{prefix[name]}ForImageClassification")(config)
        parts = [model, hf_efficient.image_processor_for(config)]
    with torch.no_grad():
        for p in parts[0].parameters():
            p.add_(torch.randn_like(p) * 0.05)  # nothing that a fresh initialisation could hit by chance
    return [parts[0].eval(), *parts[1:]]


@torch.no_grad()
def outputs(model) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        inputs = torch.rand(2, 3, size, size, generator=generator)
    else:
        inputs = torch.randint(256, (2, 30), generator=generator)
    return model.eval()(inputs).logits.flatten().tolist()  # floats survive JSON bit by bit
