"""Registration with transformers: whatever is imported first, and nothing of transformers' own is shadowed."""

import pytest

import hf_efficient
from hf_efficient.models.auto import FAMILIES

REGISTERED = """
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.models.auto import modeling_auto
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING
from hf_efficient.models.auto import FAMILIES

for name, family in FAMILIES.items():
    config = type(AutoConfig.for_model(name))
    assert config.__name__ == family.config
    for auto, model in family.classes().items():
        found = getattr(modeling_auto, auto)._model_mapping[config]
        found = found if isinstance(found, tuple) else (found,)
        assert [cls.__name__ for cls in found] == [model, *filter(None, [family.second_classes().get(auto)])]
    assert (config in IMAGE_PROCESSOR_MAPPING) == (family.processor is not None), name
    assert (config in TOKENIZER_MAPPING) == (family.tokenizer is not None), name
print("registered")
"""


def test_registered_before_anything_of_transformers_is_used(preloaded):
    result = preloaded.run("-c", REGISTERED)
    assert result.returncode == 0 and result.stdout == "registered\n", result.stderr


def test_registered_after_much_of_transformers_is_imported(bare):
    code = "from transformers import AutoModel, LlamaForCausalLM, pipeline; import hf_efficient" + REGISTERED
    result = bare.run("-c", code)
    assert result.returncode == 0 and result.stdout == "registered\n", result.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_public_names(family):
    for name in (FAMILIES[family].config, *FAMILIES[family].classes().values()):
        assert name in hf_efficient.__all__ and name in hf_efficient.models.__all__
        assert getattr(hf_efficient, name) is getattr(hf_efficient.models, name)
        assert getattr(hf_efficient, name).__name__ == name


def test_all_names_exist():
    for name in hf_efficient.__all__:
        assert hasattr(hf_efficient, name), name


def test_transformers_keeps_its_own_mobilevitv2():
    from transformers import AutoConfig, AutoModel, MobileViTV2Config, MobileViTV2Model

    assert "mobilevitv2" not in FAMILIES
    assert type(AutoConfig.for_model("mobilevitv2")) is MobileViTV2Config
    assert type(AutoModel.from_config(MobileViTV2Config(width_multiplier=0.25))) is MobileViTV2Model
