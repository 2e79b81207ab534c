"""The config: what it refuses and how it says so, the five systems as YAML, saving and the Auto classes."""

import json

import pytest
import torch
import yaml
from compressive_performer_cases import ARMS, MECHANISMS, RECIPE, TINY, YAMLS, make, text
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from hf_efficient import CompressivePerformerConfig, CompressivePerformerForCausalLM, CompressivePerformerModel
from hf_efficient.attention import list_attentions

WRONG = {
    "hidden_size=18 does not divide by num_attention_heads=4": {"hidden_size": 18, "num_attention_heads": 4},
    "heads of 3 channels: rotary positions need an even number": {"hidden_size": 12, "num_attention_heads": 4},
    "compression_rate=3 must divide segment_length=8": {"compression_rate": 3},
    "compression_rate=4 must divide memory_length=10": {"compression_rate": 4, "memory_length": 10},
    "compression='gzip' must be one of 'conv', 'autoencoder', 'mean', 'max'": {"compression": "gzip"},
    "segment_length=0 must be positive": {"segment_length": 0},
    "compression_rate=0 must be positive": {"compression_rate": 0},
    "memory_length=-4 must be 0 or positive": {"memory_length": -4},
    "compressed_memory_length=-1 must be 0 or positive": {"compressed_memory_length": -1},
    "auxiliary_loss_weight=-1.0 must be 0 or positive": {"auxiliary_loss_weight": -1.0},
    "vocab_size=0 must be positive": {"vocab_size": 0},
    "rope_theta=0 must be positive": {"rope_theta": 0},
    r"hidden_dropout_prob=1.0 must lie in \[0, 1\)": {"hidden_dropout_prob": 1.0},
    "hidden_act='nope' is unknown": {"hidden_act": "nope"},
    "norm='batch' must be one of 'layer', 'rms'": {"norm": "batch"},
    "unknown key 'segment_size'; did you mean 'segment_length'": {"segment_size": 8},
    "attention='nope' is unknown": {"attention": "nope"},
    "attention='linformer' is not causal. Mechanisms that fit: cosformer": {"attention": "linformer"},
    "attention='separable' has no queries and keys": {"attention": "separable"},
    "attention='xcit' can't take memory, whose queries are not known: set memory_length=0": {"attention": "xcit"},
    "attention_options has no 'features_count'": {"attention_options": {"features_count": 3}},
    r"attention_options\['bias'\]: the model has its own projections": {"attention_options": {"bias": False}},
    r"attention_options\['max_length'\]=5 is less than .* = 22": {
        "attention": "kerformer",
        "attention_options": {"max_length": 5},
    },
}


@pytest.mark.parametrize(("message", "fields"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_named(message, fields):
    with pytest.raises(ValueError, match=message):
        CompressivePerformerConfig(**{**TINY, **fields})


@pytest.mark.parametrize("field", ["segment_length", "memory_length", "vocab_size", "compression", "rope_theta"])
def test_wrong_types_are_named(field):
    with pytest.raises(ValueError, match=field):
        CompressivePerformerConfig(**{field: [1]})
    config = CompressivePerformerConfig()
    with pytest.raises(ValueError, match=field):
        setattr(config, field, None)


def test_fields_set_later_are_checked_when_a_model_is_made():
    config = CompressivePerformerConfig(**TINY)
    config.segment_length = 7
    with pytest.raises(ValueError, match="compression_rate=2 must divide segment_length=7"):
        CompressivePerformerForCausalLM(config)


def test_a_rate_needs_to_divide_only_what_is_compressed():
    make(**{"compressed_memory_length": 0, "segment_length": 7, "memory_length": 5})


def test_defaults_are_the_papers():
    config = CompressivePerformerConfig()
    assert (config.segment_length, config.memory_length, config.compressed_memory_length) == (768, 768, 1152)
    assert config.compression_rate == 4 and config.num_hidden_layers == 6 and config.vocab_size == 256
    assert config.intermediate_size == 2048 and config.context_length == 2688
    # T + L_m + c·L_c tokens back
    assert config.segment_length + config.memory_length + config.compression_rate * 1152 == 6144


def test_every_causal_mechanism_with_a_state_fits():
    fitting = {fields["attention"] for fields in MECHANISMS.values() if "attention" in fields}
    assert fitting == set(list_attentions(supports_causal=True, per_head=True))
    assert fitting >= {
        *("cosformer", "efficient", "gaussian_mixture", "kerformer", "linear_elu", "local", "lsh", "performer"),
        *("probabilistic", "softmax", "xcit"),
    }
    assert fitting.isdisjoint({"axial", "fnet", "linformer", "mixer", "nystrom", "separable", "window"})


def test_it_survives_json(tmp_path):
    config = CompressivePerformerConfig(**TINY, attention_options={"num_features": 12}, bos_token_id=1)
    config.save_pretrained(tmp_path)
    assert CompressivePerformerConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert "layer_types" not in json.loads((tmp_path / "config.json").read_text())
    assert type(AutoConfig.from_pretrained(tmp_path)) is CompressivePerformerConfig


def test_there_is_a_yaml_for_every_system():
    assert {file.stem for file in YAMLS} >= {
        "enwik8_compressive_performer",
        "enwik8_compressive_performer_autoencoder",
        "enwik8_compressive_transformer",
        "enwik8_performer",
        "enwik8_transformer_xl",
        "enwik8_gpt",
    }


@pytest.mark.parametrize("file", YAMLS, ids=lambda file: file.stem)
def test_every_yaml_is_a_config_of_one_class(file):
    fields = yaml.safe_load(file.read_text())["model"]
    assert fields["model_type"] == "compressive_performer"
    config = AutoConfig.for_model(**fields)
    assert type(config) is CompressivePerformerConfig and config.num_hidden_layers == 6
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert type(model) is CompressivePerformerForCausalLM
    learned = [name for name, _ in model.named_parameters() if ".compression." in name]
    assert bool(learned) == ("compressive" in file.stem)


@pytest.mark.parametrize("fields", ARMS.values(), ids=ARMS)
def test_saved_and_reloaded_it_is_the_same_to_the_bit(fields, tmp_path):
    model, ids = make(torch.float32, **fields), text(2, 30)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is CompressivePerformerForCausalLM
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
        base = AutoModel.from_pretrained(tmp_path)
        assert type(base) is CompressivePerformerModel
        assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_the_recipe_is_off_by_default_and_survives_saving(tmp_path):
    assert not any(name.endswith("_norm.weight") for name in make().state_dict())
    model, ids = make(torch.float32, **RECIPE), text(2, 30)
    names = set(model.state_dict())
    assert {f"model.layers.0.memory_attention.{name}_norm.weight" for name in "qk"} <= names
    assert not any("norm" in name and name.endswith("bias") for name in names)
    model.save_pretrained(tmp_path)  # nothing starts at zero again when it is loaded
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("tied", [False, True])
def test_outputs_that_start_at_zero(tied):
    config = CompressivePerformerConfig(**TINY, zero_init_outputs=True, tie_word_embeddings=tied)
    model, ids = CompressivePerformerForCausalLM(config), text(2, 30)
    zero = {name for name, x in model.named_parameters() if name.endswith("weight") and not x.any()}
    outputs = {f"model.layers.{i}.{name}.weight" for i in range(2) for name in ("memory_attention.o_proj", "mlp.fc2")}
    assert zero == (outputs if tied else {*outputs, "lm_head.weight"})
    with torch.no_grad():
        embedded = model.model.norm(model.model.embed_tokens(ids))
        assert torch.equal(model.model(ids).last_hidden_state, embedded)
        assert bool(model(ids).logits.any()) == tied


def test_checkpoints_with_fc2_stored_the_other_way_round_still_load(tmp_path):
    model, ids = make(torch.float32), text(2, 30)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    turned = [name for name in weights if name.endswith("mlp.fc2.weight")]
    assert len(turned) == model.config.num_hidden_layers
    weights.update({name: weights[name].T.contiguous() for name in turned})
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, model(ids).logits)


def test_tied_weights_stay_tied(tmp_path):
    for tied in (True, False):
        model = make(torch.float32, tie_word_embeddings=tied)
        model.save_pretrained(tmp_path / str(tied))
        assert ("lm_head.weight" in load_file(tmp_path / str(tied) / "model.safetensors")) != tied
        again = CompressivePerformerForCausalLM.from_pretrained(tmp_path / str(tied))
        assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
        assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_initial_weights():
    torch.manual_seed(0)
    config = CompressivePerformerConfig(
        **{**TINY, "hidden_size": 64, "initializer_range": 0.05, "compression": "autoencoder"}
    )
    for model in (CompressivePerformerForCausalLM(config), AutoModelForCausalLM.from_config(config)):
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name
            elif "layernorm" in name or "norm.weight" in name:
                assert (parameter == 1).all(), name
            elif ".compression." not in name:
                assert abs(parameter.std() - 0.05) < 0.01, name
        compression = model.model.layers[0].memory_attention.compression
        old = torch.randn(2, 6, 64)
        new = compression(old)
        torch.testing.assert_close(new, old.unflatten(1, (-1, 2)).mean(2))
        torch.testing.assert_close(compression.decode(new), new.repeat_interleave(2, 1))


def test_the_tokenizer_is_found_beside_the_model(tmp_path):
    from test_compressive_performer_generation import tokenizer

    letters = tokenizer()
    make(torch.float32).save_pretrained(tmp_path)
    letters.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("abca").input_ids == letters("abca").input_ids
