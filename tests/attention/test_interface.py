"""transformers' own models with our mechanisms, against the mechanisms' naive form in the same models."""

import gc
import weakref

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTModel,
)

import hf_efficient
from hf_efficient.attention import (
    Attention,
    build_attention,
    get_attention,
    interface,
    list_attentions,
    register_attention,
)
from hf_efficient.attention.interface import bridge, padding_mask

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BRIDGED = [name for name in list_attentions() if get_attention(name).parameter_free]


def naive_twin(name):
    """Registers the mechanism's literal formula as an attention implementation of its own."""

    def naive(module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None, **kwargs):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        longest = getattr(module.config, "max_position_embeddings", 64)
        core = build_attention(
            name,
            query.shape[1] * query.shape[3],
            query.shape[1],
            head_dim=query.shape[3],
            causal=module.is_causal,
            layer_idx=getattr(module, "layer_idx", None) or 0,
            projections=False,
            **({"max_length": longest} if name == "cosformer" else {}),
        )
        return core.naive(query, key, value, key_mask=attention_mask).transpose(1, 2), None

    AttentionInterface.register(f"{name}_naive", naive)
    AttentionMaskInterface.register(f"{name}_naive", padding_mask)
    return f"{name}_naive"


def llama(**more):
    config = LlamaConfig(vocab_size=50, num_key_value_heads=2, max_position_embeddings=64, **SIZES, **more)
    return LlamaForCausalLM(config).double().eval()


def bert(**more):
    return BertModel(BertConfig(vocab_size=50, **SIZES, **more)).double().eval()


def sharpen(model):
    """Larger projections: at initialisation every mechanism is nearly a mean, and errors would not show."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 and any(key in name for key in ("q_proj", "k_proj", "query", "key")):
                p.mul_(20)
    return model


def test_the_parameter_free_mechanisms_are_names():
    linear = {"linear_elu", "efficient", "cosformer", "performer", "nystrom"}
    assert linear | {"softmax", "local", "longformer", "bigbird", "dct"} <= set(BRIDGED)
    assert hf_efficient.attention.list_attentions() == list_attentions()


@pytest.mark.parametrize("name", list_attentions())
def test_parameter_free_is_said_truly(name):
    cls = get_attention(name)
    owns_nothing = not build_attention(name, 32, 4).own_parameters()
    fits = cls.per_head and not cls.needs_grid and cls.key_dim != 0
    assert cls.parameter_free == (owns_nothing and fits)


@pytest.mark.parametrize("name", BRIDGED)
def test_vit(name):
    model = sharpen(ViTModel(ViTConfig(image_size=32, patch_size=8, **SIZES)).double().eval())
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    model.set_attn_implementation(name)
    fast = model(images).last_hidden_state
    model.set_attn_implementation(naive_twin(name))
    assert_close(fast, model(images).last_hidden_state, atol=1e-8, rtol=1e-8)
    model.set_attn_implementation("sdpa")
    if name == "softmax":
        assert_close(fast, model(images).last_hidden_state, atol=1e-8, rtol=1e-8)
    elif name not in ("bigbird", "local", "longformer"):  # windows and blocks of 64 see all of 17 tokens
        assert (fast - model(images).last_hidden_state).abs().max() > 1e-4


@pytest.mark.parametrize("name", BRIDGED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_bert_with_padding(name, side):
    model, ids = sharpen(bert()), torch.randint(1, 50, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.long)
    real = slice(4, None) if side == "left" else slice(0, 8)
    mask[1] = 0
    mask[1, real] = 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    model.set_attn_implementation(name)
    fast = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state
    alone = model(ids[1:, real]).last_hidden_state
    assert_close(fast[1:, real], alone, atol=1e-8, rtol=1e-8)
    model.set_attn_implementation(naive_twin(name))
    slow = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state
    assert_close(fast[mask.bool()], slow[mask.bool()], atol=1e-8, rtol=1e-8)


CAUSAL = [name for name in BRIDGED if get_attention(name).supports_causal]


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("side", ["left", "right"])
def test_llama_is_causal_and_padding_changes_nothing(name, side):
    model, ids = sharpen(llama()), torch.randint(1, 50, (2, 12))
    model.set_attn_implementation(name)
    whole = model(ids).logits
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    assert_close(model(changed).logits[:, :7], whole[:, :7], atol=1e-9, rtol=1e-9)

    mask = torch.ones(2, 12, dtype=torch.long)
    real = slice(4, None) if side == "left" else slice(0, 8)
    mask[1] = 0
    mask[1, real] = 1
    padded = model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)).logits
    assert_close(padded[1:, real], model(ids[1:, real]).logits, atol=1e-8, rtol=1e-8)
    model.set_attn_implementation(naive_twin(name))
    assert_close(whole, model(ids).logits, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_equals_recomputation(name):
    model, ids = sharpen(llama()), torch.randint(1, 50, (2, 5))
    model.set_attn_implementation(name)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    arguments = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(ids, **arguments)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **arguments))
    assert torch.equal(cached, model.generate(ids, cache_implementation="static", **arguments))


def bart():
    sizes = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_layers": 1, "decoder_layers": 2, "d_model": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
    return sharpen(BartModel(BartConfig(vocab_size=50, **sizes, **heads)).double().eval())


@pytest.mark.parametrize("name", list_attentions(parameter_free=True, supports_cross=True, supports_causal=True))
@pytest.mark.parametrize("lengths", [(12, 5), (5, 12)], ids=["more keys", "fewer keys"])
def test_an_encoder_and_a_decoder(name, lengths):
    """Cross-attention: the decoder's queries against the encoder's tokens, some of which are padding."""
    model, (source, target) = bart(), (torch.randint(1, 50, (2, n)) for n in lengths)
    mask = torch.ones_like(source)
    mask[1, -2:] = 0
    results = {}
    for implementation in (name, naive_twin(name), "sdpa"):
        model.set_attn_implementation(implementation)
        padded = model(source, attention_mask=mask, decoder_input_ids=target).last_hidden_state
        whole = model(source, decoder_input_ids=target).last_hidden_state
        alone = model(source[1:, :-2], decoder_input_ids=target[1:]).last_hidden_state
        assert_close(padded[1:], alone, atol=1e-8, rtol=1e-8)
        results[implementation] = torch.cat([padded, whole])
    assert_close(results[name], results[f"{name}_naive"], atol=1e-8, rtol=1e-8)
    if name == "softmax":
        assert_close(results[name], results["sdpa"], atol=1e-8, rtol=1e-8)
    else:
        assert (results[name] - results["sdpa"]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["local", "nystrom", "cosformer"])
def test_cross_attention_is_refused_by_those_that_can_not(name):
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(
        ValueError, match=rf"'{name}' needs as many queries as keys, got 3 queries and 5 keys.*softmax"
    ):
        bridge(name)(torch.nn.Identity(), q, k, k, None)


def test_two_models_of_one_shape_share_nothing():
    """One in training, with dropout and redraws of its own, the other in evaluation."""
    one, other = sharpen(llama(attention_dropout=0.5)).train(), sharpen(llama()).eval()
    ids = torch.randint(1, 50, (2, 9))
    used = {}

    def watch(model):
        cores = {}
        for layer in model.model.layers:
            module = layer.self_attn
            cores[module] = interface.core_of(module, "performer", 4, 8, True)
        return cores

    for model in (one, other):
        model.set_attn_implementation("performer")
        model(ids)
        used[model] = watch(model)
    assert not set(map(id, used[one].values())) & set(map(id, used[other].values()))
    assert all(core.training and core.dropout == 0.5 for core in used[one].values())
    assert not any(core.training or core.dropout for core in used[other].values())
    assert watch(one) == used[one], "kept from call to call"


def test_a_model_that_is_gone_leaves_nothing_behind():
    model = llama()
    model.set_attn_implementation("linear_elu")
    model(torch.randint(1, 50, (1, 4)))
    layers = [weakref.ref(layer.self_attn) for layer in model.model.layers]
    cores = [weakref.ref(interface.core_of(layer(), "linear_elu", 4, 8, True)) for layer in layers]
    del model
    gc.collect()
    assert [x() for x in (*layers, *cores)] == [None] * 4


def test_mechanisms_that_cannot_be_causal_refuse_a_decoder():
    model = llama()
    model.set_attn_implementation("nystrom")
    with pytest.raises(ValueError, match="'nystrom' attention does not support causal=True"):
        model(torch.randint(1, 50, (1, 6)))


def test_patterns_it_cannot_express_are_refused():
    model = llama()
    model.set_attn_implementation("linear_elu")
    with pytest.raises(ValueError, match=r"padding mask, got a mask of shape \(1, 1, 6, 6\)"):
        model(torch.randint(1, 50, (1, 6)), attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(ValueError, match="packed sequences"):
        model(torch.randint(1, 50, (1, 6)), position_ids=packed, use_cache=False)


def test_position_biases_are_not_lost_silently():
    model = T5EncoderModel(T5Config(vocab_size=50, d_model=32, d_kv=8, num_heads=4, num_layers=1, d_ff=32))
    model.set_attn_implementation("softmax")
    with pytest.raises(ValueError, match=r"T5Attention adds position_bias .* 'softmax' attention would not see"):
        model(torch.randint(1, 50, (1, 6)))


def test_training_through_the_bridge_reaches_every_parameter():
    model = llama().float().train()
    model.set_attn_implementation("performer")
    ids = torch.randint(1, 50, (2, 9))
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_third_party_mechanism_becomes_a_name_too():
    @register_attention("bridge_test_mean")
    class Mean(Attention):
        parameter_free = True

        def attend(self, q, k, v, key_mask=None, position_ids=None):
            return v.mean(2, keepdim=True).expand_as(v)

    try:
        model = ViTModel(ViTConfig(image_size=32, patch_size=8, **SIZES)).eval()
        model.set_attn_implementation("bridge_test_mean")
        assert torch.isfinite(model(torch.randn(1, 3, 32, 32)).last_hidden_state).all()
    finally:
        from hf_efficient.attention import registry

        del registry._MECHANISMS["bridge_test_mean"]
