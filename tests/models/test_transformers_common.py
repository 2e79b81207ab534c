"""transformers' own common tests, on every model class of ours.

They are no part of what is installed. `TRANSFORMERS_TESTS` names a checkout of the version that is:

    git clone --depth 1 --branch v5.22.2 https://github.com/huggingface/transformers
    pip install parameterized httpx
    TRANSFORMERS_TESTS=transformers pytest tests/models/test_transformers_common.py

An older checkout does if the folder `tests` of the version's sdist is copied over its own (`pip download --no-deps
--no-binary :all: transformers==5.22.2`).
"""

import importlib.util
import os
import sys
import unittest.mock
from pathlib import Path

import pytest
import torch
import transformers
from families import VISION, images, inputs, texts, tiny_config
from torch import nn

import hf_efficient
from hf_efficient.models.auto import FAMILIES

CHECKOUT = os.environ.get("TRANSFORMERS_TESTS")
if not CHECKOUT:
    pytest.skip("TRANSFORMERS_TESTS names no checkout of transformers", allow_module_level=True)
for needed in ("parameterized", "httpx"):
    pytest.importorskip(needed, reason=f"transformers' tests need it: pip install {needed}")


def import_tests(folder: Path) -> None:
    """transformers' tests, which import one another as the package `tests`."""
    spec = importlib.util.spec_from_file_location(
        "tests", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules["tests"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["tests"])


import_tests(Path(CHECKOUT) / "tests")
from tests.generation.test_utils import GenerationTesterMixin  # noqa: E402
from tests.test_backbone_common import BackboneTesterMixin  # noqa: E402
from tests.test_configuration_common import ConfigTester  # noqa: E402
from tests.test_modeling_common import ModelTesterMixin  # noqa: E402

LANGUAGE, MOBILE, SIGNATURES = "compressive_performer", "mobilevit_v2", "imagesig"
# Common tests that say nothing of a family, and why.
NOT_OURS = {
    SIGNATURES: {
        "test_hidden_states_output": "signatures come first, then convolutions; see test_imagesig",
        "test_retain_grad_hidden_states_attentions": "its first hidden state are signatures, which nothing learns",
    },
}


class Tiny:
    """A tiny config of a family, and a batch, in the words of transformers' tests."""

    is_training = True
    batch_size = 3

    def __init__(self, family: str):
        self.family, self.config = family, tiny_config(family)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size"):
            if hasattr(self.config, name):
                setattr(self, name, getattr(self.config, name))
        if family == MOBILE:  # its first hidden state is a map of half the image's size, the others are its stages
            self.seq_length = self.hidden_size = self.image_size // 2
            self.num_hidden_layers, self.expected_num_hidden_layers = 1, 5
        else:
            self.seq_length = self.config.num_positions if family in VISION else 20

    def get_config(self):
        return tiny_config(self.family)

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        if self.family in VISION:
            return config, {"pixel_values": images(config, self.batch_size)}
        tokens = torch.randint(config.vocab_size, (self.batch_size, self.seq_length))
        return config, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


class CommonTests:
    """What transformers' mixins are told of a family. What it overrides, tests of transformers' own models do too."""

    family: str

    def setUp(self):
        for auto, name in FAMILIES[self.family].classes().items():  # by which they tell heads from encoders
            known = getattr(transformers, auto)._model_mapping._model_mapping
            told = unittest.mock.patch.dict(known, {self.family: name})
            told.start()
            self.addCleanup(told.stop)
        self.model_tester = Tiny(self.family)
        fields = ["width_multiplier"] if self.family == MOBILE else None  # instead of hidden_size and so on
        self.config_tester = ConfigTester(
            self,
            config_class=type(self.model_tester.config),
            has_text_modality=self.family not in VISION,
            common_properties=fields,
        )

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        given = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if return_labels and model_class.__name__.endswith("ForObjectDetection"):
            given |= inputs(model_class(self.model_tester.get_config()), self.model_tester.batch_size, labels=True)
        return given

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        """A memory holds no keys and values, and its size does not grow with the text."""
        self.assertEqual(len(past_key_values), config.num_hidden_layers)
        for layer in past_key_values.layers:
            self.assertEqual((layer.batch_size, layer.get_seq_length()), (batch_size, seq_length))
            self.assertEqual(layer.memory.segment.shape, (batch_size, config.segment_length, config.hidden_size))

    def test_config(self):
        self.config_tester.run_common_tests()

    def test_model_get_set_embeddings(self):
        """Images are embedded by a convolution."""
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config())
            kind = nn.Module if self.family in VISION else nn.Embedding
            self.assertIsInstance(model.get_input_embeddings(), kind)
            self.assertIsInstance(model.get_output_embeddings(), nn.Linear | None)

    def test_reverse_loading_mapping(self):
        """Of older checkpoints a weight is transposed, and keeps its name."""
        super().test_reverse_loading_mapping(check_keys_were_modified=self.family != LANGUAGE)


def common_tests(family: str) -> type:
    described = FAMILIES[family]
    names = [name for auto, name in described.classes().items() if auto != "AutoBackbone"]
    mixins = [ModelTesterMixin, *([GenerationTesterMixin] if family == LANGUAGE else [])]
    own = {
        "family": family,
        "all_model_classes": tuple(getattr(hf_efficient, name) for name in names),
        "test_resize_embeddings": family not in VISION,
        "has_attentions": family not in (LANGUAGE, MOBILE),
    }
    skipped = {name: unittest.skip(why)(lambda self: None) for name, why in NOT_OURS.get(family, {}).items()}
    return type(f"{described.prefix}ModelTest", (CommonTests, *mixins, unittest.TestCase), {**own, **skipped})


for model_type in FAMILIES:
    case = common_tests(model_type)
    globals()[case.__name__] = case
del case


class PairsTest(CommonTests, ModelTesterMixin, unittest.TestCase):
    """KerformerTextForSequencePairClassification, whose rows are two texts each."""

    family = "kerformer_text"
    all_model_classes = (hf_efficient.KerformerTextForSequencePairClassification,)

    def setUp(self):
        super().setUp()
        self.model_tester.prepare_config_and_inputs_for_common = self.pairs

    def pairs(self):
        config = self.model_tester.get_config()
        tokens = texts(config, 2 * self.model_tester.batch_size).unflatten(0, (-1, 2))
        return config, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        given = super()._prepare_for_class(inputs_dict, model_class)
        return given | ({"labels": torch.zeros(self.model_tester.batch_size).long()} if return_labels else {})


class BackboneTest(CommonTests, BackboneTesterMixin, unittest.TestCase):
    family = MOBILE
    all_model_classes = (hf_efficient.MobileViTv2Backbone,)
    config_class = hf_efficient.MobileViTv2Config
    has_attentions = False
    test_model_get_set_embeddings = test_reverse_loading_mapping = None

    def test_config(self):
        """It counts stages by `depths`."""
        stages = property(lambda config: config.stage_names[1:])
        with unittest.mock.patch.object(self.config_class, "depths", stages, create=True):
            BackboneTesterMixin.test_config(self)
