"""Which model of ours each of transformers' Auto classes, pipelines and processors stands for.

Registering imports what it registers, so `hf_efficient` calls these functions only once transformers' own Auto modules
are there. A new family is one more entry in `FAMILIES`.
"""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A folder `models/<model_type>` whose classes all begin with `prefix`."""

    prefix: str
    models: dict[str, str]  # transformers' Auto class -> rest of the class name
    processor: str | None = None  # transformers' image processor, without the backend's suffix
    tokenizer: str | None = None  # transformers' tokenizer

    @property
    def config(self) -> str:
        return f"{self.prefix}Config"

    def classes(self) -> dict[str, str]:
        return {auto: f"{self.prefix}{rest}" for auto, rest in self.models.items()}


FAMILIES = {
    "hugginggreen_vit": Family(
        "HuggingGreenViT",
        {
            "AutoModel": "Model",
            "AutoModelForImageClassification": "ForImageClassification",
            "AutoModelForMaskedImageModeling": "ForMaskedImageModeling",
            "AutoModelForObjectDetection": "ForObjectDetection",
        },
        processor="ViTImageProcessor",
    ),
    "kerformer_vit": Family(
        "KerformerViT",
        {
            "AutoModel": "Model",
            "AutoModelForImageClassification": "ForImageClassification",
            "AutoModelForMaskedImageModeling": "ForMaskedImageModeling",
        },
        processor="ViTImageProcessor",
    ),
    "mobilevit_v2": Family(
        "MobileViTv2",
        {
            "AutoModel": "Model",
            "AutoModelForImageClassification": "ForImageClassification",
            "AutoModelForSemanticSegmentation": "ForSemanticSegmentation",
            "AutoModelForObjectDetection": "ForObjectDetection",
            "AutoBackbone": "Backbone",
        },
        processor="MobileViTImageProcessor",
    ),
    "compressive_performer": Family(
        "CompressivePerformer",
        {"AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"},
        tokenizer="PreTrainedTokenizerFast",
    ),
}

# Where each public name lives, without importing it.
PUBLIC_NAMES = {
    name: f"hf_efficient.models.{model_type}.{kind}_{model_type}"
    for model_type, family in FAMILIES.items()
    for kind, names in (("configuration", [family.config]), ("modeling", family.classes().values()))
    for name in names
} | {"image_processor_for": "hf_efficient.data.processing"}

CONFIG_MODULES = tuple(f"hf_efficient.models.{name}.configuration_{name}" for name in FAMILIES)
MODEL_MODULES = tuple(f"hf_efficient.models.{name}.modeling_{name}" for name in FAMILIES)


def load(name: str) -> type:
    """The public class of that name."""
    return getattr(importlib.import_module(PUBLIC_NAMES[name]), name)


def register_configs() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    for model_type, family in FAMILIES.items():
        AutoConfig.register(model_type, load(family.config), exist_ok=True)


def register_models() -> None:
    from transformers.models.auto import modeling_auto

    for model_type, family in FAMILIES.items():
        config = load(family.config)
        for auto, name in family.classes().items():
            getattr(modeling_auto, auto).register(config, load(name), exist_ok=True)
            _tell_pipelines(modeling_auto, model_type, auto, name)


def _tell_pipelines(modeling_auto, model_type: str, auto: str, name: str) -> None:
    """Pipelines for detection and segmentation look at copies of these tables, which `register` does not reach."""
    tables = {
        "AutoModelForObjectDetection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
        "AutoModelForSemanticSegmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    }
    if auto in tables:
        getattr(modeling_auto, tables[auto])[model_type] = name


def register_processors() -> None:
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor
    from transformers.utils import is_torchvision_available

    for family in FAMILIES.values():
        if family.processor is None:
            continue
        classes = {"pil": getattr(transformers, f"{family.processor}Pil")}
        if is_torchvision_available():
            classes["torchvision"] = getattr(transformers, family.processor)
        AutoImageProcessor.register(load(family.config), image_processor_classes=classes, exist_ok=True)


def register_tokenizers() -> None:
    import transformers
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    for family in FAMILIES.values():
        if family.tokenizer is not None:
            tokenizer = getattr(transformers, family.tokenizer)
            AutoTokenizer.register(load(family.config), tokenizer_class=tokenizer, exist_ok=True)
