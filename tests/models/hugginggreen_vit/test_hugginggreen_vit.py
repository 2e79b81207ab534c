"""HuggingGreenViT: dropped patches, equality with transformers' ViT, schedules and resuming, routing, freezing."""

import copy

import pytest
import torch
from families import SMALL
from sklearn.datasets import load_digits
from torch.utils.flop_counter import FlopCounterMode
from transformers import ViTConfig, ViTForImageClassification

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForImageClassification, HuggingGreenViTModel
from hf_efficient.attention import get_attention, list_attentions
from hf_efficient.layers import HeadRouter

SIZES = {**SMALL, "num_attention_heads": 4}
PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 3, 4])
ALWAYS = {"prob": 1.0, "prob_schedule": "constant"}
PLAIN = {"attention": "softmax", "pooling": "cls"}
GRID_MECHANISMS = [name for name in list_attentions() if get_attention(name).needs_grid]


def config(**fields):
    return HuggingGreenViTConfig(**{**SIZES, "num_labels": 5, **fields})


def classifier(**fields):
    torch.manual_seed(0)
    return HuggingGreenViTForImageClassification(config(**fields))


def stir(model, scale=0.05):
    """Off its initial values, where attention is even and routers don't care."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * scale)
    return model


def tokens_seen(model, **inputs) -> list[int]:
    """How many tokens enter each block."""
    seen = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1])) for layer in model.vit.layers
    ]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    return seen


def choices(model, steps):
    return [None if (x := model(PIXELS).patch_indices) is None else x.tolist() for _ in range(steps)]


# Dropping.


@pytest.mark.parametrize("heuristic", ["contrast", "variance", "entropy"])
def test_every_layer_sees_the_kept_tokens_only(heuristic):
    model = classifier(heuristic=heuristic, top_k=7, select_at_eval=True, **ALWAYS)
    assert tokens_seen(model.train(), pixel_values=PIXELS) == [8, 8]
    assert tokens_seen(model.eval(), pixel_values=PIXELS) == [8, 8]
    assert tokens_seen(classifier(heuristic=heuristic, top_k=7).eval(), pixel_values=PIXELS) == [17, 17]
    assert tokens_seen(classifier(heuristic="none").train(), pixel_values=PIXELS) == [17, 17]


def test_chosen_patches_are_returned():
    model = classifier(top_k=7, select_at_eval=True).eval()
    output = model(PIXELS)
    assert output.patch_indices.shape == (3, 7)
    assert torch.equal(output.patch_indices, model.vit.selector(PIXELS))
    assert torch.equal(model.vit(PIXELS).patch_indices, output.patch_indices)
    assert model.vit(PIXELS, select_patches=False).patch_indices is None
    assert classifier().eval()(PIXELS).patch_indices is None


def test_by_default_seventy_per_cent_are_kept():
    assert HuggingGreenViTConfig().num_kept_patches == 138
    assert config().num_kept_patches == 12  # of 16


@pytest.mark.parametrize("name", ["softmax", "probabilistic", "gaussian_mixture", "kerformer", "linformer", "mixer"])
def test_the_order_of_kept_patches_is_immaterial(name):
    model = stir(classifier(attention=name)).eval()
    chosen = torch.rand(3, 16).argsort(1)[:, :9]
    ordered = model(PIXELS, patch_indices=chosen.sort(1).values).logits
    torch.testing.assert_close(model(PIXELS, patch_indices=chosen).logits, ordered, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "kerformer"])
def test_dropped_pixels_do_not_matter(name):
    model, chosen = stir(classifier(attention=name)).eval(), torch.tensor([[0, 5, 6, 15]] * 3)
    changed = PIXELS.clone()
    changed[:, :, :8, 8:] += 3  # patches 1, 2, 3
    assert torch.equal(model(PIXELS, patch_indices=chosen).logits, model(changed, patch_indices=chosen).logits)
    assert not torch.allclose(model(PIXELS).logits, model(changed).logits)


def test_kept_patches_keep_their_positions():
    """Zero pixels: all patches look the same, so only where they stood can tell them apart."""
    model, zeros = stir(classifier(**PLAIN)).eval(), torch.zeros(1, 3, 32, 32)
    one, other = (model(zeros, patch_indices=torch.tensor([x])).logits for x in ([1, 2, 3], [7, 8, 9]))
    assert not torch.allclose(one, other, atol=1e-4)


def test_all_patches_kept_is_transformers_vit():
    torch.manual_seed(0)
    vit = stir(ViTForImageClassification(ViTConfig(**SIZES, num_labels=5))).eval()
    for fields in ({"heuristic": "none"}, {"heuristic": "contrast"}, {"top_k": 16, "select_at_eval": True}):
        model = classifier(**PLAIN, **fields).eval()
        model.load_state_dict(
            vit.state_dict(), strict=fields["heuristic"] == "none" if "heuristic" in fields else False
        )
        output = model(PIXELS, labels=LABELS)
        torch.testing.assert_close(output.logits, vit(PIXELS).logits, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(output.loss, vit(PIXELS, labels=LABELS).loss)
        assert output.patch_indices is None
    every = torch.arange(16).expand(3, 16)
    torch.testing.assert_close(model(PIXELS, patch_indices=every).logits, vit(PIXELS).logits, atol=1e-5, rtol=1e-5)


def test_a_vit_checkpoint_loads(tmp_path):
    vit = stir(ViTForImageClassification(ViTConfig(**SIZES, num_labels=5))).eval()
    vit.save_pretrained(tmp_path)
    fields = {**PLAIN, "heuristic": "entropy", "num_labels": 5}
    model, info = HuggingGreenViTForImageClassification.from_pretrained(
        tmp_path, config=config(**fields), output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(model(PIXELS).logits, vit(PIXELS).logits, atol=1e-6, rtol=1e-5)
    assert model.vit.selector.step == 0 and model.vit.selector.epoch == 0


def test_probabilistic_attention_starts_as_softmax():
    softmax = stir(classifier(**PLAIN)).eval()
    model = classifier(pooling="cls").eval()
    model.load_state_dict(softmax.state_dict(), strict=False)
    torch.testing.assert_close(model(PIXELS).logits, softmax(PIXELS).logits, atol=1e-5, rtol=1e-5)


def test_mean_pooling_counts_cls():
    model = stir(classifier()).eval()
    output = model.vit(PIXELS, output_hidden_states=True)
    pooled = model.vit.layernorm(output.hidden_states[-1].mean(1))
    assert output.hidden_states[-1].shape == (3, 17, 32)
    torch.testing.assert_close(output.pooler_output, pooled)
    torch.testing.assert_close(model(PIXELS).logits, model.classifier(pooled))


@pytest.mark.parametrize("fields", [{}, {"pooling": "cls"}, {"pooling": "cls", "routing": "tokens"}], ids=str)
def test_a_classifier_computes_no_more_than_it_pools(fields):
    model = stir(classifier(**fields)).eval()
    whole, pooled = model.vit(PIXELS), model.vit(PIXELS, pooled_only=True)
    torch.testing.assert_close(pooled.pooler_output, whole.pooler_output)
    assert pooled.last_hidden_state is None and whole.last_hidden_state.shape == (3, 17, 32)
    torch.testing.assert_close(model(PIXELS).logits, model.classifier(whole.pooler_output))
    states = model(PIXELS, output_hidden_states=True).hidden_states
    assert [x.shape for x in states] == [(3, 17, 32)] * 3
    model.config.output_hidden_states = True
    assert all(torch.equal(x, y) for x, y in zip(model(PIXELS).hidden_states, states, strict=True))


@pytest.mark.parametrize("name", list_attentions())
def test_every_fitting_mechanism_drops_patches(name):
    if name in GRID_MECHANISMS:
        with pytest.raises(ValueError, match="whole grid of patches: set heuristic='none'"):
            config(attention=name, use_cls_token=False)
        model = classifier(attention=name, heuristic="none", use_cls_token=False).train()
    else:
        model = classifier(attention=name, top_k=7, **ALWAYS).train()
    output = model(PIXELS, labels=LABELS)
    output.loss.backward()
    assert torch.isfinite(output.loss) and all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", ["softmax", "kerformer"])
def test_other_sizes_keep_the_same_share(name):
    model = classifier(attention=name, top_k=8, select_at_eval=True).eval()  # half
    larger = torch.randn(2, 3, 48, 64)  # 6 x 8 patches
    with pytest.raises(ValueError, match="interpolate_pos_encoding"):
        model(larger)
    output = model(larger, interpolate_pos_encoding=True)
    assert output.patch_indices.shape == (2, 24) and torch.isfinite(output.logits).all()


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_numbers_of_channels(channels):
    model = classifier(num_channels=channels, top_k=7, **ALWAYS).train()
    assert model(torch.randn(2, channels, 32, 32)).patch_indices.shape == (2, 7)


# When.


def test_prob_decays_with_epochs():
    model = classifier(prob=0.5, prob_decay_rate=5e-3)
    assert model.selection_probability() == 0.5
    assert model.selection_probability(20) == pytest.approx(0.18, abs=5e-3)
    assert model.selection_probability(50) == pytest.approx(0.001, abs=5e-4)
    model.set_epoch(20)
    assert model.selection_probability() == model.vit.selection_probability() == model.selection_probability(20)
    assert classifier(heuristic="none").selection_probability() == 0.0
    model.set_epoch(300)
    assert choices(model.train(), 20) == [None] * 20


def test_a_resumed_run_makes_the_same_choices(tmp_path):
    model = classifier(top_k=7).train()
    model.set_epoch(3)
    choices(model, 5)
    model.save_pretrained(tmp_path)
    again = HuggingGreenViTForImageClassification.from_pretrained(tmp_path).train()
    assert again.vit.selector.epoch == 3 and again.vit.selector.step == 5
    copied = copy.deepcopy(model)
    expected = choices(model, 10)
    torch.manual_seed(99)
    assert choices(again, 10) == expected == choices(copied, 10)
    assert None in expected and any(expected)
    assert choices(classifier(top_k=7, selection_seed=1).train(), 10) != choices(classifier(top_k=7).train(), 10)


def test_evaluation_takes_no_step():
    model = classifier(select_at_eval=True, **ALWAYS).eval()
    first = model(PIXELS)
    assert torch.equal(first.logits, model(PIXELS).logits) and model.vit.selector.step == 0
    model.train()(PIXELS)
    assert model.vit.selector.step == 1


def test_checkpointed_layers_do_not_take_another_step():
    model = stir(classifier(top_k=7, **ALWAYS)).train()
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable()
    for each in (model, other):
        each(PIXELS, labels=LABELS).loss.backward()
        assert each.vit.selector.step == 1
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-6, rtol=1e-4, msg=name)


# Routing and sparsity.


def flops(model) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(PIXELS)
    return counter.get_total_flops()


def test_dropping_and_routing_save_computation():
    def of(**fields):
        return flops(classifier(num_attention_heads=8, num_hidden_layers=12, **fields).eval())

    whole = of()
    assert of(select_at_eval=True, top_k=8) < 0.6 * whole
    assert of(pooling="cls") < of(pooling="mean")  # the last MLP is for CLS only
    heads = [of(routing="heads", routing_capacity=share) for share in (0.25, 0.5, 1.0)]
    assert heads[0] < heads[1] < heads[2] == pytest.approx(whole, rel=0.02)
    assert heads[1] - heads[0] == pytest.approx((heads[2] - heads[1]) / 2, rel=0.02)  # by 2 and by 4 heads
    assert of(routing="tokens", routing_capacity=0.5) < 0.6 * whole
    assert of(routing="tokens", select_at_eval=True, top_k=8) < 0.35 * whole


def test_routing_follows_the_config():
    model = stir(classifier(routing="heads", routing_capacity=0.6)).train()
    assert all(isinstance(layer.attention, HeadRouter) and layer.attention.capacity == 3 for layer in model.vit.layers)
    output = model(PIXELS, labels=LABELS)
    assert output.routing_balance > 0
    model.config.routing_balance_weight = 0.0
    torch.manual_seed(0)
    lighter = copy.deepcopy(model)
    lighter.config.routing_balance_weight = 2.0
    losses = []
    for each in (model, lighter):
        torch.manual_seed(0)
        losses.append(each(PIXELS, labels=LABELS))
    torch.testing.assert_close(losses[1].loss, losses[0].loss + 2 * losses[0].routing_balance)
    assert classifier(routing="tokens").train()(PIXELS).routing_balance is None


def test_every_router_learns():
    for routing in ("heads", "tokens"):
        model = stir(classifier(routing=routing, **ALWAYS)).train()
        model(PIXELS, labels=LABELS).loss.backward()
        routers = {n: p for n, p in model.named_parameters() if n.endswith(("gate.weight", "router.weight"))}
        assert len(routers) == 2 and all(p.grad.abs().sum() > 0 for p in routers.values())


@pytest.mark.parametrize("kind", ["entropy", "hoyer"])
def test_sparsity_enters_the_loss(kind):
    plain = stir(classifier(heuristic="none"))
    model = classifier(heuristic="none", attention_sparsity=kind, attention_sparsity_weight=0.5)
    model.load_state_dict(plain.state_dict())
    expected, output = plain.train()(PIXELS, labels=LABELS), model.train()(PIXELS, labels=LABELS)
    assert 0 < output.attn_sparsity < 1 and expected.attn_sparsity is None
    torch.testing.assert_close(output.loss, expected.loss + 0.5 * output.attn_sparsity)
    model.eval()
    assert model(PIXELS, labels=LABELS).attn_sparsity is None
    torch.testing.assert_close(model(PIXELS, labels=LABELS).loss, plain.eval()(PIXELS, labels=LABELS).loss)
    off = classifier(attention_sparsity=kind, attention_sparsity_weight=0.0).train()
    assert off(PIXELS).attn_sparsity is None


def test_what_is_added_to_the_loss_is_accumulated_like_the_rest():
    """The parts of a batch, each with the whole's `num_items_in_batch`, add up to their weighted mean."""
    model = stir(classifier(heuristic="none", attention_sparsity="entropy", attention_sparsity_weight=1.0)).train()
    batches = [(PIXELS[:1], LABELS[:1]), (PIXELS[1:], LABELS[1:])]
    alone = [model(x, labels=y).loss for x, y in batches]
    parts = [model(x, labels=y, num_items_in_batch=torch.tensor(3)).loss for x, y in batches]
    torch.testing.assert_close(sum(parts), (alone[0] + 2 * alone[1]) / 3)


# Freezing.


def test_a_frozen_backbone_stays_as_it_is():
    model = stir(classifier(hidden_dropout_prob=0.3, top_k=7, attention_sparsity="entropy", **ALWAYS)).train()
    model.freeze_backbone()
    assert model.training and model.classifier.training
    for _ in range(2):
        assert not any(module.training for module in model.vit.modules())
        pixels = PIXELS.clone().requires_grad_()
        output = model(pixels, labels=LABELS)
        assert output.patch_indices is None and model.vit.selector.step == 0
        model.zero_grad()
        output.loss.backward()
        assert all(p.grad is None and not p.requires_grad for p in model.vit.parameters())
        assert all(p.grad.abs().sum() > 0 for p in model.classifier.parameters())
        assert pixels.grad is None  # there was no backward pass at all
        model.eval().train()  # what every epoch does
    torch.testing.assert_close(model(PIXELS).logits, model.eval()(PIXELS).logits)
    with torch.no_grad():
        assert torch.equal(model(PIXELS).logits, copy.deepcopy(model).train()(PIXELS).logits)


def test_freezing_is_not_saved(tmp_path):
    model = classifier(**ALWAYS)
    model.freeze_backbone()
    model.save_pretrained(tmp_path)
    again = HuggingGreenViTForImageClassification.from_pretrained(tmp_path).train()
    assert all(p.requires_grad for p in again.parameters()) and again.vit.training
    assert torch.equal(again.eval()(PIXELS).logits, model.eval()(PIXELS).logits)


# Others.


@pytest.mark.parametrize("fields", [{}, {"routing": "tokens"}, {"select_at_eval": True, "top_k": 7}])
def test_attentions(fields):
    model = classifier(**fields).eval()
    tokens = {"{}": 17, "tokens": 9, "True": 8}[str(next(iter(fields.values()), {}))]
    output = model(PIXELS, output_attentions=True)
    assert [x.shape for x in output.attentions] == [(3, 4, tokens, tokens)] * 2
    torch.testing.assert_close(output.logits, model(PIXELS).logits, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="output_attentions"):
        classifier(routing="heads")(PIXELS, output_attentions=True)


@pytest.mark.parametrize(
    "fields", [{"top_k": 7, "select_at_eval": True}, {"routing": "heads"}, {"routing": "tokens"}], ids=str
)
def test_rows_of_a_batch_do_not_see_each_other(fields):
    model = stir(classifier(**fields)).eval()
    alone = torch.cat([model(PIXELS[i : i + 1]).logits for i in range(3)])
    torch.testing.assert_close(model(PIXELS).logits, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fields", [{"routing": "heads"}, {"routing": "tokens"}, {"attention": "gaussian_mixture"}])
def test_saved_and_reloaded_is_bit_equal(fields, tmp_path):
    model = stir(classifier(**fields)).eval()
    model.save_pretrained(tmp_path)
    again = HuggingGreenViTForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(again(PIXELS).logits, model(PIXELS).logits)
    assert torch.equal(HuggingGreenViTModel.from_pretrained(tmp_path)(PIXELS)[0], model.vit(PIXELS)[0])


def test_compiled_models_make_the_same_choices():
    model = stir(classifier(top_k=7)).train()
    compiled = torch.compile(copy.deepcopy(model), backend="eager")
    kept = []
    for _ in range(8):
        one, other = model(PIXELS, labels=LABELS), compiled(PIXELS, labels=LABELS)
        torch.testing.assert_close(one.loss, other.loss)
        assert one.patch_indices is other.patch_indices or torch.equal(one.patch_indices, other.patch_indices)
        kept.append(one.patch_indices is not None)
    assert len(set(kept)) == 2


@pytest.mark.parametrize("heuristic", ["contrast", "variance", "entropy"])
def test_exported_with_selection_for_any_batch(heuristic):
    model = stir(classifier(heuristic=heuristic, top_k=7, select_at_eval=True)).eval()
    batch = {"pixel_values": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(model, (), {"pixel_values": PIXELS}, dynamic_shapes=batch, strict=False)
    more = torch.cat([PIXELS, -torch.ones(2, 3, 32, 32)])  # two black images: ties only
    torch.testing.assert_close(program.module()(pixel_values=more)["logits"], model(more).logits)


def test_bad_patch_indices_are_named():
    model = classifier().eval()
    for bad, match in [
        (torch.tensor([[0, 16]] * 3), "from 0 to 15"),
        (torch.tensor([[0, -1]] * 3), "from 0 to 15"),
        (torch.zeros(3, 0, dtype=torch.long), "at least one"),
        (torch.tensor([[2, 2]] * 3), "twice"),
        (torch.tensor([[0, 1]] * 2), "for a batch of 3"),
        (torch.tensor([0, 1]), "patch_indices must be integers"),
        (torch.zeros(3, 2), "torch.float32"),
    ]:
        with pytest.raises(ValueError, match=match):
            model(PIXELS, patch_indices=bad)


def test_bad_images_are_named():
    model = classifier(**ALWAYS).train()
    for inputs in ({}, {"patch_indices": torch.tensor([[0]])}, {"labels": LABELS}):
        with pytest.raises(ValueError, match="pixel_values is missing"):
            model(**inputs)
    with pytest.raises(ValueError, match=r"pixel_values must be \(batch, 3, height, width\)"):
        model(PIXELS[0], patch_indices=torch.tensor([[0]] * 3))
    with pytest.raises(ValueError, match=r"pixel_values must be \(batch, 3, height, width\)"):
        model(PIXELS[:, :2])
    with pytest.raises(ValueError, match="no multiple of patch_size=8"):
        model(PIXELS[:, :, :30], interpolate_pos_encoding=True)
    with pytest.raises(ValueError, match="pixel_values holds NaN"):
        model(PIXELS * torch.nan)


def test_real_digits_are_learned_to_the_last_one():
    digits = load_digits()
    pixels = torch.tensor(digits.images[:32] / 16, dtype=torch.float32).unsqueeze(1).repeat_interleave(2, 2)
    pixels, labels = pixels.repeat_interleave(2, 3) * 2 - 1, torch.tensor(digits.target[:32])  # (32, 1, 16, 16)
    torch.manual_seed(0)
    model = HuggingGreenViTForImageClassification(
        HuggingGreenViTConfig(
            **{**SIZES, "image_size": 16, "patch_size": 4, "num_channels": 1, "num_labels": 10},
            **{"attention_sparsity": "entropy", "prob": 0.8},
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(120):
        model.set_epoch(step // 12)
        optimizer.zero_grad()
        model(pixels, labels=labels).loss.backward()
        optimizer.step()
    assert (model.eval()(pixels).logits.argmax(-1) == labels).all()
