"""Which model of ours each of transformers' Auto classes, pipelines and processors stands for.

A new family is a folder in `models/` and one more entry in `FAMILIES`.
"""

import importlib
from dataclasses import dataclass, field

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.image_processing_auto import AutoImageProcessor
from transformers.utils import is_torchvision_available


@dataclass(frozen=True)
class Family:
    """A folder `models/<model_type>` whose classes all begin with `prefix`."""

    prefix: str
    models: dict[str, str]  # transformers' Auto class -> rest of the class name
    seconds: dict[str, str] = field(default_factory=dict)  # the same, for configs whose `architectures` name it
    processor: str | None = None  # transformers' image processor, without the backend's suffix
    tokenizer: str | None = None  # transformers' tokenizer

    @property
    def config(self) -> str:
        return f"{self.prefix}Config"

    def classes(self) -> dict[str, str]:
        return {auto: f"{self.prefix}{rest}" for auto, rest in self.models.items()}

    def second_classes(self) -> dict[str, str]:
        return {auto: f"{self.prefix}{rest}" for auto, rest in self.seconds.items()}


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
    "kerformer_text": Family(
        "KerformerText",
        {
            "AutoModel": "Model",
            "AutoModelForSequenceClassification": "ForSequenceClassification",
            "AutoModelForMaskedLM": "ForMaskedLM",
        },
        seconds={"AutoModelForSequenceClassification": "ForSequencePairClassification"},
        tokenizer="PreTrainedTokenizerFast",
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
    "imagesig": Family(
        "ImageSig",
        {"AutoModel": "Model", "AutoModelForImageClassification": "ForImageClassification"},
        processor="ViTImageProcessor",
    ),
    "compressive_performer": Family(
        "CompressivePerformer",
        {"AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"},
        tokenizer="PreTrainedTokenizerFast",
    ),
}


def import_family(model_type: str) -> dict[str, type]:
    """The config and the models of a family, by name."""
    family, folder = FAMILIES[model_type], f"{__package__}.{model_type}"
    configuration = importlib.import_module(f"{folder}.configuration_{model_type}")
    modeling = importlib.import_module(f"{folder}.modeling_{model_type}")
    names = (*family.classes().values(), *family.second_classes().values())
    models = {name: getattr(modeling, name) for name in names}
    return {family.config: getattr(configuration, family.config), **models}


def register(model_type: str, classes: dict[str, type]) -> None:
    """Enters a family into transformers' Auto classes."""
    family = FAMILIES[model_type]
    config = classes[family.config]
    transformers.AutoConfig.register(model_type, config, exist_ok=True)
    for auto, name in family.classes().items():
        second = family.second_classes().get(auto)
        model = (classes[name], classes[second]) if second else classes[name]
        getattr(modeling_auto, auto).register(config, model, exist_ok=True)
        _tell_pipelines(model_type, auto, name)
    if family.processor is not None:
        backends = {"pil": getattr(transformers, f"{family.processor}Pil")}
        if is_torchvision_available():
            backends["torchvision"] = getattr(transformers, family.processor)
        AutoImageProcessor.register(config, image_processor_classes=backends, exist_ok=True)
    if family.tokenizer is not None:
        tokenizer = getattr(transformers, family.tokenizer)
        transformers.AutoTokenizer.register(config, tokenizer_class=tokenizer, exist_ok=True)


def _tell_pipelines(model_type: str, auto: str, name: str) -> None:
    """Pipelines look at copies of these tables, which `register` does not reach."""
    tables = {
        "AutoModelForObjectDetection": modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
        "AutoModelForSemanticSegmentation": modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES,
        "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }
    if auto in tables:
        tables[auto][model_type] = name
