"""Swapping the attention of trained models."""

import copy
import math

import pytest
import torch
from converted_models import CAUSAL, MAKERS, SIZES, inputs, make
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoModelForSequenceClassification,
    BartConfig,
    BartModel,
    BertModel,
    CLIPTextConfig,
    CLIPTextModel,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5EncoderModel,
    ViTConfig,
)
from transformers import ViTForImageClassification as ViTClassifier

from hf_efficient import KerformerTextConfig, KerformerTextModel
from hf_efficient.attention import build_attention, convert_attention, get_attention, list_attentions, load_converted

FITTING = [
    name
    for name in list_attentions()
    if get_attention(name).per_head and not get_attention(name).needs_grid and get_attention(name).key_dim != 0
]
each_kind = pytest.mark.parametrize("kind", MAKERS)


def real_outputs(model, batch):
    """Outputs of real tokens, or what the model makes of the whole sample."""
    output = model(**batch)[0]
    return output[batch["attention_mask"].bool()] if output.dim() == 3 and "attention_mask" in batch else output


@each_kind
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_softmax_for_softmax_changes_nothing(kind, implementation):
    model, batch = make(kind), inputs(kind)
    model.set_attn_implementation(implementation)
    before = real_outputs(model, batch)
    report = convert_attention(model, "softmax", batch=batch)
    assert len(report.layers) == 2
    assert max(layer.relative_error for layer in report.layers) < 1e-5
    assert report.output_error < 1e-5
    assert_close(real_outputs(model, batch), before, atol=1e-5, rtol=1e-5)


@each_kind
def test_linear_attention_keeps_weights_and_their_names(kind):
    model, batch = make(kind), inputs(kind)
    before, weights = real_outputs(model, batch), copy.deepcopy(model.state_dict())
    report = convert_attention(model, "kerformer", batch=batch)
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in weights.items())
    assert {key.rpartition(".mechanism.")[2] for key in set(after) - set(weights)} == {
        f"se_k.{table}" for table in ("squeeze.weight", "squeeze.bias", "excite.weight", "excite.bias")
    }
    assert min(layer.relative_error for layer in report.layers) > 0.01
    assert (real_outputs(model, batch) - before).abs().max() > 1e-3
    model.set_attn_implementation("sdpa")
    assert_close(real_outputs(model, batch), before)


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind not in ("vit", "deit")])
def test_padding_changes_nothing(kind):
    model, batch = make(kind), inputs(kind)
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        convert_attention(model, "linear_elu", batch=batch)
        alone = model(batch["input_ids"][1:, :6])[0]
        padded = model(**batch)[0][1:]
        assert_close(padded[:, :6] if padded.dim() == 3 else padded, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("name", ["linear_elu", "kerformer"])
def test_decoders_stay_causal_and_generate_with_their_cache(kind, name):
    model, ids = make(kind), inputs(kind)["input_ids"]
    convert_attention(model, name)
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    assert_close(model(changed).logits[:, :7], model(ids).logits[:, :7])
    mask = torch.tensor([[1] * 10, [0, 0, 0] + [1] * 7])
    arguments = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(ids, **arguments), model.generate(ids, use_cache=False, **arguments))


@each_kind
def test_saved_and_loaded(kind, tmp_path):
    model, batch = make(kind), inputs(kind)
    convert_attention(model, "kerformer", se_reduction=8)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "mechanism" in name:
                p.normal_()
    model.save_pretrained(tmp_path)
    again, info = load_converted(type(model), tmp_path, output_loading_info=True)
    assert type(again) is type(model) and not info["missing_keys"] and not info["unexpected_keys"]
    assert again.config.converted_attention == {"name": "kerformer", "se_reduction": 8}
    assert torch.equal(again(**batch)[0], model(**batch)[0])


def test_auto_classes_and_random_features_are_loaded(tmp_path):
    model, batch = make("bert"), inputs("bert")
    convert_attention(model, "performer", seed=5)
    model.save_pretrained(tmp_path)
    again = load_converted(AutoModelForSequenceClassification, tmp_path)
    assert torch.equal(again(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("name", ["linear_elu", "kerformer"])
def test_plain_loading_is_never_softmax_in_silence(name, tmp_path):
    model, batch = make("bert"), inputs("bert")
    softmax = model(**batch)[0]
    convert_attention(model, name)
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path).eval()
    with pytest.raises(ValueError, match="was converted, and plain from_pretrained does not bring its mechanism"):
        plain(**batch)
    chosen = type(model).from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    assert torch.allclose(chosen(**batch)[0], softmax, atol=1e-5)
    again = load_converted(type(model), tmp_path)
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(load_converted(type(model), tmp_path / "again")(**batch)[0], model(**batch)[0])


def test_a_model_that_was_not_converted_is_not_loaded(tmp_path):
    make("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no model whose attention was converted: load it by from_pretrained"):
        load_converted(BertModel, tmp_path)


@pytest.mark.parametrize("name", FITTING)
def test_every_fitting_mechanism_takes_over(name):
    model, batch = make("vit"), inputs("vit")
    report = convert_attention(model, name, batch=batch)
    assert [layer.layer for layer in report.layers] == ["layers.0.attention", "layers.1.attention"]
    # How far off it is, is the mechanism's affair: one that sharpens may be farther than one that returns nothing.
    assert all(0 <= layer.relative_error < math.inf and abs(layer.cosine) <= 1.0001 for layer in report.layers)
    assert torch.isfinite(model(**batch).last_hidden_state).all()
    model.train()(**batch).last_hidden_state.sum().backward()


def test_probabilistic_attention_is_exact():
    report = convert_attention(make("vit"), "probabilistic", batch=inputs("vit"))
    assert report.output_error < 1e-5


def test_the_error_falls_with_more_features():
    errors = []
    for features in (8, 64, 1024):
        report = convert_attention(make("vit"), "performer", batch=inputs("vit"), num_features=features, epsilon=0.0)
        errors.append(sum(layer.relative_error for layer in report.layers))
    assert errors[0] > errors[1] > errors[2]


def test_random_features_are_redrawn_while_training():
    model, batch = make("bert"), inputs("bert")
    convert_attention(model, "performer", redraw_interval=1)
    mechanism = model.bert.encoder.layer[0].attention.self.mechanism
    drawn = mechanism.projection
    model(**batch)
    assert mechanism.projection is drawn
    model.train()(**batch)
    assert not torch.equal(mechanism.projection, drawn)


def test_attention_between_two_sequences_stays_softmax():
    sizes = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_layers": 1, "decoder_layers": 1, "d_model": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
    torch.manual_seed(0)
    model = BartModel(BartConfig(vocab_size=50, **sizes, **heads)).eval()
    ids, target = torch.randint(3, 50, (2, 10)), torch.randint(3, 50, (2, 4))
    before = model(ids, decoder_input_ids=target).last_hidden_state
    report = convert_attention(model, "softmax")
    assert [layer.layer for layer in report.layers] == ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn"]
    assert_close(model(ids, decoder_input_ids=target).last_hidden_state, before)


def test_converting_twice_keeps_the_last():
    model, batch = make("bert"), inputs("bert")
    convert_attention(model, "kerformer")
    convert_attention(model, "linear_elu")
    once = make("bert")
    convert_attention(once, "linear_elu")
    assert torch.equal(model(**batch).logits, once(**batch).logits)
    assert set(model.state_dict()) == set(once.state_dict())


def test_our_own_modules_are_converted_in_place():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = build_attention("softmax", 32, 4, causal=True)

        def forward(self, x):
            return self.attention(x)

    model = nn.Sequential(Block())
    projection = model[0].attention.q_proj
    report = convert_attention(model, "linear_elu", batch=torch.randn(1, 6, 32))
    assert model[0].attention.name == "linear_elu"
    assert model[0].attention.causal
    assert model[0].attention.q_proj is projection
    assert report.layers[0].relative_error > 0


def test_our_own_models_keep_their_rotary_positions():
    config = KerformerTextConfig(vocab_size=50, position_embedding="rotary", attention="linear_elu", **SIZES)
    model, batch = KerformerTextModel(config).eval(), inputs("bert")
    before = model(**batch).last_hidden_state
    convert_attention(model, "efficient")
    convert_attention(model, "linear_elu")
    assert_close(model(**batch).last_hidden_state, before)


def test_tables_get_the_models_length():
    model = make("vit")
    convert_attention(model, "kerformer")
    assert model.layers[0].attention.mechanism.se_k.max_length == 17
    model = make("llama")
    convert_attention(model, "kerformer")
    assert model.model.layers[0].self_attn.mechanism.se_k.max_length == 64


def test_without_a_batch_there_are_no_errors_to_show():
    report = convert_attention(make("vit"), "efficient")
    assert report.output_error is None
    assert "layers.1.attention" in str(report)


def test_training_mode_and_dtype_are_kept():
    model = ViTClassifier(ViTConfig(image_size=32, patch_size=8, **SIZES)).to(torch.bfloat16).train()
    convert_attention(model, "xcit", batch=torch.randn(1, 3, 32, 32, dtype=torch.bfloat16))
    assert all(module.training for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_what_does_not_fit_is_refused():
    for name in set(list_attentions()) - set(FITTING):
        with pytest.raises(ValueError, match=f"'{name}' attention can't take over.*Mechanisms that can: .*performer"):
            convert_attention(make("vit"), name)
    with pytest.raises(ValueError, match="unknown attention 'softmaxx'"):
        convert_attention(make("vit"), "softmaxx")
    with pytest.raises(ValueError, match="Linear has no attention that can be converted"):
        convert_attention(nn.Linear(2, 2), "softmax")
    with pytest.raises(ValueError, match="k projection"):
        convert_attention(make("vit"), "gaussian_mixture", keys="multi")


def test_models_whose_attention_is_another_are_refused():
    mistral = MistralForCausalLM(MistralConfig(vocab_size=50, num_key_value_heads=2, sliding_window=4, **SIZES))
    with pytest.raises(ValueError, match=r"layers.0.self_attn has a sliding window \(sliding_window=4\)"):
        convert_attention(mistral, "linear_elu")
    with pytest.raises(ValueError, match="'nystrom' attention does not support causal=True"):
        convert_attention(make("llama"), "nystrom")
    ids = torch.randint(3, 50, (1, 6))
    clip = CLIPTextModel(CLIPTextConfig(vocab_size=50, **SIZES))
    convert_attention(clip, "linear_elu")
    with pytest.raises(ValueError, match="converted to 'linear_elu' attention with causal=False, but is called with"):
        clip(ids)
    t5 = T5EncoderModel(T5Config(vocab_size=50, d_model=32, d_kv=8, num_heads=4, num_layers=1, d_ff=32))
    with pytest.raises(ValueError, match="T5Attention adds position_bias"):
        convert_attention(t5, "linear_elu", batch={"input_ids": ids})
