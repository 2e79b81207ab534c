"""int8 and 4 bits by quanto and bitsandbytes while a model is loaded, on a CPU. Neither is among what we install:

pip install --no-deps optimum-quanto bitsandbytes
"""

import importlib.util

import pytest
import torch
from interop_models import FAMILIES, build, logits
from transformers import BitsAndBytesConfig, QuantoConfig

# Package, options, and how far a logit may move, over the largest of them: narrow models suffer more than wide ones.
CONFIGS = {
    "quanto int8": ("optimum.quanto", QuantoConfig, {"weights": "int8"}, 0.03),
    "quanto int4": ("optimum.quanto", QuantoConfig, {"weights": "int4"}, 0.3),
    "bitsandbytes int8": ("bitsandbytes", BitsAndBytesConfig, {"load_in_8bit": True}, 0.05),
    "bitsandbytes int4": (
        "bitsandbytes",
        BitsAndBytesConfig,
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        0.5,
    ),
}


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_while_loading(family, name, tmp_path):
    package, config, options, most = CONFIGS[name]
    if not is_installed(package):
        pytest.skip(f"{package} is not installed")
    model = build(family)
    model.save_pretrained(tmp_path)
    other = type(model).from_pretrained(tmp_path, quantization_config=config(**options))
    exact, rounded = logits(model), logits(other)
    assert torch.isfinite(rounded).all()
    assert 0 < (rounded - exact).abs().max() < most * exact.abs().max()
