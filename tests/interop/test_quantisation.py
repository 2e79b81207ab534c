"""int8 by torchao, of every linear layer: weights alone, or inputs too as they come (dynamic). How far logits move is
said over their scale, the largest of them. With the weights alone no logit moves by 1 %; with the inputs too they
move by 0.3 % on average, but single ones by more than 1 % in models as narrow as these."""

import copy
from functools import cache

import pytest
import torch
from interop_models import build, logits
from torch import nn
from transformers import TorchAoConfig

from hf_efficient.data.text import load_text
from hf_efficient.models.compressive_performer.fast.projection import NarrowProjection, Projection, use_linear_layers

torchao = pytest.importorskip("torchao.quantization", reason="pip install hf-efficient[interop]")

BOUNDS = {  # of the worst logit, 0.5 to 0.8 % and 0.7 to 1.9 % over seeds, and of the root mean square, up to 0.3 %
    torchao.Int8WeightOnlyConfig: (0.01, 0.005),
    torchao.Int8DynamicActivationInt8WeightConfig: (0.03, 0.005),
}
configs = pytest.mark.parametrize("config", BOUNDS, ids=["weights", "dynamic"])


def trained(model, batches, steps, learning_rate=3e-3):
    """Weights of a kind that training makes: those of a fresh model say nothing about rounding."""
    optimiser = torch.optim.AdamW(model.train().parameters(), lr=learning_rate)
    for step in range(steps):
        optimiser.zero_grad()
        model(**batches(step)).loss.backward()
        optimiser.step()
    return model.eval()


@cache
def train_on_digits(family):
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels, labels = torch.tensor(digits.images).float().unsqueeze(1) / 8 - 1, torch.tensor(digits.target)
    model = build(family, image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=64)

    def batch(step):
        rows = torch.arange(64 * step, 64 * step + 64) % 1600
        return {"pixel_values": pixels[rows], "labels": labels[rows]}

    return trained(model, batch, steps=100), {"pixel_values": pixels[1600:]}


@cache
def train_on_text():
    stream = torch.tensor(list(load_text("pydocs")[:40_000]))
    model = build("CompressivePerformer", hidden_size=64, intermediate_size=128)

    def batch(step):
        ids = stream[512 * step : 512 * step + 512].view(8, 64)
        return {"input_ids": ids, "labels": ids}

    return trained(model, batch, steps=60), {"input_ids": stream[-1024:].view(8, 128)}


def quantised(model, config=torchao.Int8DynamicActivationInt8WeightConfig):
    model = copy.deepcopy(model)
    torchao.quantize_(model, config())
    return model


def layers(model, kind):
    """The names of the layers of a kind, and of those among them that are int8."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, kind)}
    return set(found), {name for name, layer in found.items() if type(layer.weight).__name__ == "Int8Tensor"}


def assert_near(model, other, batch, config):
    with torch.no_grad():
        exact, rounded = model(**batch).logits, other(**batch).logits
    moved = (rounded - exact) / exact.abs().max()
    worst, typical = BOUNDS[config]
    assert 0 < moved.abs().max() < worst and moved.square().mean().sqrt() < typical


@configs
@pytest.mark.parametrize("family", ["HuggingGreenViT", "KerformerViT"])
def test_vision_transformers(family, config):
    model, batch = train_on_digits(family)
    other = quantised(model, config)
    linear, int8 = layers(other, nn.Linear)
    assert len(linear) == 2 * 6 + 1 and int8 == linear
    assert_near(model, other, batch, config)


@configs
def test_language_model(config):
    """Most of its projections are no `nn.Linear`, which is all that torchao knows: it wants them converted."""
    model, batch = train_on_text()
    few = quantised(model, config)
    assert layers(few, nn.Linear)[1] == {"lm_head", *(f"model.layers.{i}.mlp.fc2" for i in range(2))}
    assert_near(model, few, batch, config)
    other = quantised(use_linear_layers(copy.deepcopy(model)), config)
    linear, int8 = layers(other, nn.Linear)
    assert len(linear) == 2 * 4 + 1 and int8 == linear
    assert_near(model, other, batch, config)
    ids = batch["input_ids"][:1, :40]
    written = [other.generate(ids, max_new_tokens=20, do_sample=False, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*written)


INT8_WHILE_LOADING = {"HuggingGreenViT": 13, "KerformerViT": 13, "MobileViTv2": 1, "CompressivePerformer": 2}


@pytest.mark.parametrize("family", INT8_WHILE_LOADING)
def test_while_loading(family, tmp_path):
    """What `from_pretrained` quantises is saved and loaded again as it is."""
    model = build(family)
    model.save_pretrained(tmp_path)
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    other = type(model).from_pretrained(tmp_path, quantization_config=config)
    assert len(layers(other, (nn.Linear, nn.Conv2d))[1]) == INT8_WHILE_LOADING[family]
    exact, rounded = logits(model), logits(other)
    assert 0 < (rounded - exact).abs().max() < 0.02 * exact.abs().max()
    other.save_pretrained(tmp_path / "int8")
    assert torch.equal(logits(type(model).from_pretrained(tmp_path / "int8")), rounded)


def test_linear_layers_are_the_projections():
    model = build("CompressivePerformer")
    other = use_linear_layers(copy.deepcopy(model))
    own = (Projection, NarrowProjection)
    assert layers(model, own)[0] and not layers(other, own)[0]
    torch.testing.assert_close(logits(other), logits(model), atol=1e-5, rtol=1e-5)


def test_of_mobilevit_only_the_classifier_is_quantised():
    """All else are convolutions, which torchao leaves as they are."""
    assert layers(quantised(build("MobileViTv2")), (nn.Linear, nn.Conv2d))[1] == {"classifier"}
