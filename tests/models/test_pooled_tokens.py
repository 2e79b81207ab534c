"""Token pooling in ViTs: fewer tokens and less to compute behind the layers that the config names."""

import pytest
import torch
from families import images, inputs, main_output, stirred, tiny_config, tiny_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageClassification

from hf_efficient.attention import get_attention, list_attentions
from hf_efficient.layers.token_pooling import has_significance
from hf_efficient.remote_code import flatten

VITS = ("kerformer_vit", "hugginggreen_vit")
CLASSIFIER, MASKED = "AutoModelForImageClassification", "AutoModelForMaskedImageModeling"
POOLING = {"after": [1, 3], "keep": 0.7}
DEEP = {"num_hidden_layers": 4, "token_pooling": POOLING}
GRID = list_attentions(needs_grid=True)
families = pytest.mark.parametrize("family", VITS)


def lengths(model, pixels, **options) -> list[int]:
    states = model(pixels, output_hidden_states=True, **options).hidden_states
    return [x.shape[1] for x in states]


def flops(model, pixels) -> int:
    fused = sdpa_kernel(SDPBackend.MATH)  # the counter does not know the fused kernel
    with FlopCounterMode(display=False) as counter, torch.no_grad(), fused:
        model(pixels)
    return counter.get_total_flops()


@families
@pytest.mark.parametrize("method", ["kmeans", "kmedoids"])
def test_later_layers_have_fewer_tokens(family, method):
    model = stirred(family, CLASSIFIER, **{**DEEP, "token_pooling": {**POOLING, "method": method, "iterations": 2}})
    pixels = images(model.config)
    assert lengths(model, pixels) == [17, 13, 13, 10, 10]  # CLS and 16 patches, then ⌈0.7·16⌉ = 12, then ⌈0.7·12⌉ = 9
    assert model(pixels).logits.shape == (3, 5)


def test_later_layers_have_less_to_compute():
    """Of 12 layers, behind 3, 6 and 9: what is computed falls about as the sum over layers of the tokens left."""
    sizes = {"image_size": 64, "patch_size": 8, "hidden_size": 64, "intermediate_size": 256}
    fields = {**sizes, "num_hidden_layers": 12, "attention": "softmax"}
    pixels = torch.randn(1, 3, 64, 64)
    whole = tiny_model("kerformer_vit", CLASSIFIER, **fields)
    pooled = tiny_model("kerformer_vit", CLASSIFIER, **fields, token_pooling={"after": [3, 6, 9], "keep": 0.7})
    tokens = lengths(pooled, pixels)
    assert tokens == [65] * 3 + [46] * 3 + [33] * 3 + [24] * 4
    left = sum(tokens[:12]) / (12 * 65)
    assert left < 0.65
    assert flops(pooled, pixels) / flops(whole, pixels) < left + 0.07  # clustering takes a little of what is saved


@families
def test_all_tokens_kept_is_no_pooling(family):
    plain = stirred(family, CLASSIFIER, num_hidden_layers=4)
    model = tiny_model(family, CLASSIFIER, **{**DEEP, "token_pooling": {**POOLING, "keep": 1.0}})
    model.load_state_dict(plain.state_dict())
    pixels = images(model.config)
    torch.testing.assert_close(model(pixels).logits, plain(pixels).logits, atol=1e-5, rtol=1e-5)


@families
def test_saved_and_reloaded_is_equal(family, tmp_path):
    model = stirred(family, CLASSIFIER, **DEEP)
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert again.config.token_pooling == POOLING
    assert torch.equal(main_output(model(**inputs(model))), main_output(again(**inputs(model))))
    whole = AutoModelForImageClassification.from_pretrained(tmp_path, token_pooling=None)
    assert lengths(whole, images(model.config))[-1] == 17


@families
def test_every_weight_learns_and_checkpointing_changes_nothing(family):
    grads = []
    for checkpointing in (False, True):
        model = stirred(family, CLASSIFIER, **DEEP).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**inputs(model, labels=True)).loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())
        grads.append([p.grad for p in model.parameters()])
    for plain, checkpointed in zip(*grads, strict=True):
        torch.testing.assert_close(plain, checkpointed, atol=1e-6, rtol=1e-4)


def test_selection_comes_first():
    """9 of 16 patches are selected, of which ⌈0.7·9⌉ = 7 are left, then 5; `patch_indices` says what was selected."""
    model = stirred("hugginggreen_vit", "AutoModel", select_at_eval=True, **DEEP)
    pixels = images(model.config)
    assert lengths(model, pixels) == [10, 8, 8, 6, 6]
    assert model(pixels).patch_indices.shape == (3, 9)
    assert lengths(model, torch.randn(2, 3, 64, 64), interpolate_pos_encoding=True) == [37, 27, 27, 20, 20]


@pytest.mark.parametrize("routing", ["heads", "tokens"])
def test_routing_goes_on_with_what_is_left(routing):
    model = stirred("hugginggreen_vit", CLASSIFIER, routing=routing, **DEEP)
    assert lengths(model, images(model.config)) == [17, 13, 13, 10, 10]
    model.train()(**inputs(model, labels=True)).loss.backward()


def test_attention_says_which_tokens_count():
    names = {
        name
        for name in list_attentions()
        if has_significance(tiny_model("kerformer_vit", attention=name, use_cls_token=False).layers[0].attention)
    }
    assert names == {"softmax", "probabilistic", "gaussian_mixture"}
    model, seen = stirred("kerformer_vit", "AutoModel", attention="softmax", **DEEP), []
    pooling = model.layers[0].token_pooling
    pooling.register_forward_hook(lambda module, given, output: seen.append(given[1]))
    shown = model(images(model.config), output_attentions=True).attentions
    model(images(model.config))
    for weights in seen:
        torch.testing.assert_close(weights, shown[0])
    assert [x.shape[-1] for x in shown] == [17, 13, 13, 10]


@pytest.mark.parametrize("attention", [name for name in list_attentions() if name not in GRID])
def test_every_mechanism_that_needs_no_grid_fits(attention):
    """Tables of positions are read where a cluster's first token stood."""
    model = stirred("kerformer_vit", CLASSIFIER, attention=attention, **DEEP)
    batch = inputs(model)
    logits = model(**batch).logits
    assert logits.isfinite().all()
    alone = torch.cat([model(batch["pixel_values"][i : i + 1]).logits for i in range(3)])
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)


def test_positions_are_those_of_the_tokens_that_clusters_began_with():
    model, seen = stirred("kerformer_vit", "AutoModel", **DEEP), []
    hook = lambda module, args, kwargs: seen.append(kwargs["position_ids"])  # noqa: E731
    for layer in model.layers:
        layer.attention.register_forward_pre_hook(hook, with_kwargs=True)
    model(images(model.config))
    assert seen[0] is None
    for positions in seen[1:]:
        assert (positions[:, 0] == 0).all() and (positions.diff(dim=1) > 0).all() and positions.max() <= 16
    kept = [set(row.tolist()) for row in seen[3]]
    assert all(later < set(row.tolist()) for later, row in zip(kept, seen[1], strict=True))


def test_its_code_goes_along():
    files = flatten("hf_efficient.models.hugginggreen_vit.modeling_hugginggreen_vit", "softmax")
    assert "layers_token_pooling.py" in files


@families
@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"after": [1]}, "needs 'keep': the share of tokens"),
        ({"keep": 0.5}, "needs 'after': the layers"),
        (
            {"after": [1], "keep": 0.5, "kept": 3},
            "token_pooling has no 'kept'; valid: after, keep, method, iterations",
        ),
        ({"after": [2], "keep": 0.5}, r"token_pooling.after=\[2\] must be a list of layers from 1 to 1"),
        ({"after": [0], "keep": 0.5}, r"token_pooling.after=\[0\]"),
        ({"after": [], "keep": 0.5}, r"token_pooling.after=\[\]"),
        ({"after": 1, "keep": 0.5}, "token_pooling.after=1 must be a list"),
        ({"after": [1], "keep": 0}, r"token_pooling.keep=0 is a share of the tokens: it must lie in \(0, 1\]"),
        ({"after": [1], "keep": 7}, "token_pooling.keep=7"),
        ({"after": [1], "keep": "most"}, "token_pooling.keep='most'"),
        ({"after": [1], "keep": 0.5, "method": "mean"}, "token_pooling.method='mean' must be 'kmeans' or 'kmedoids'"),
        ({"after": [1], "keep": 0.5, "iterations": 0}, "token_pooling.iterations=0 must be a positive integer"),
        ("often", "token_pooling"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(family, pooling, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(family, token_pooling=pooling)


@families
def test_what_needs_every_patch_refuses(family):
    with pytest.raises(ValueError, match=r"token_pooling=.* leaves fewer tokens than patches"):
        tiny_model(family, MASKED, **DEEP)
    for attention in GRID:
        fields = {
            "attention": attention,
            "use_cls_token": False,
            **({"heuristic": "none"} if "green" in family else {}),
        }
        assert get_attention(attention).needs_grid
        with pytest.raises(ValueError, match=f"attention='{attention}' needs the whole grid.*token_pooling to None"):
            tiny_config(family, **fields, **DEEP)
