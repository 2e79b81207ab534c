"""Registration with transformers: whatever is imported first, and nothing of transformers' own is shadowed."""

import subprocess
import sys

import pytest
from families import VISION

import hf_efficient
from hf_efficient.models.auto import FAMILIES, PUBLIC_NAMES

REGISTERED = """
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoModelForImageClassification
from transformers.models.auto.modeling_auto import MODEL_MAPPING
for name in {families!r}:
    config = AutoConfig.for_model(name)
    assert type(config) in MODEL_MAPPING, name
print("registered")
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "first",
    [
        "import hf_efficient",
        "import transformers; import hf_efficient",
        "from transformers import AutoModel; import hf_efficient",
        "import hf_efficient; from transformers import ViTModel",
        "import hf_efficient; from transformers import AutoConfig",
        "import hf_efficient; from transformers import LlamaForCausalLM",
        "import hf_efficient; from transformers import Trainer",
        "import hf_efficient; from transformers import pipeline",
        "import hf_efficient; import transformers.modeling_layers",
        "from hf_efficient import KerformerViTModel",
        "import hf_efficient.models.kerformer_vit.modeling_kerformer_vit",
        "import hf_efficient.models.kerformer_vit.configuration_kerformer_vit",
        "import hf_efficient.layers",
        "import hf_efficient.attention, torch; from transformers import AutoImageProcessor",
    ],
)
def test_registered_whatever_comes_first(first):
    result = run(first + REGISTERED.format(families=VISION))
    assert result.returncode == 0 and result.stdout == "registered\n", result.stderr


def test_importing_the_package_does_not_import_torch():
    result = run("import sys, hf_efficient; hf_efficient.__all__; print('torch' in sys.modules)")
    assert result.stdout == "False\n", result.stderr


def test_public_names():
    for name in PUBLIC_NAMES:
        assert getattr(hf_efficient, name).__name__ == name
        assert name in dir(hf_efficient)
    with pytest.raises(AttributeError, match="NoSuchModel"):
        hf_efficient.NoSuchModel  # noqa: B018


def test_subpackages_are_modules():
    for name in ("attention", "layers", "models"):
        assert getattr(hf_efficient, name).__name__ == f"hf_efficient.{name}"


def test_transformers_keeps_its_own_mobilevitv2():
    from transformers import AutoConfig, AutoModel, MobileViTV2Config, MobileViTV2Model

    assert "mobilevitv2" not in FAMILIES
    assert type(AutoConfig.for_model("mobilevitv2")) is MobileViTV2Config
    assert type(AutoModel.from_config(MobileViTV2Config(width_multiplier=0.25))) is MobileViTV2Model
