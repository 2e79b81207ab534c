"""HuggingGreenViTForMaskedImageModeling: which patches are hidden, what is compared, what comes out."""

import pytest
import torch
from families import SMALL

from hf_efficient import HuggingGreenViTConfig, HuggingGreenViTForMaskedImageModeling

SIZES = {**SMALL, "num_attention_heads": 4}
PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
ALWAYS = {"prob": 1.0, "prob_schedule": "constant"}


def masked_model(**fields):
    torch.manual_seed(0)
    model = HuggingGreenViTForMaskedImageModeling(HuggingGreenViTConfig(**{**SIZES, **fields}))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return model


def patch_of(images: torch.Tensor, index: int) -> torch.Tensor:
    """(B, C, 8, 8)"""
    row, column = divmod(index, 4)
    return images[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]


@pytest.mark.parametrize(("ratio", "top_k", "hidden"), [(0.15, 12, 2), (0.15, 2, 1), (0.6, 10, 6), (0.15, 16, 2)])
def test_a_share_of_the_kept_patches_is_hidden(ratio, top_k, hidden):
    model = masked_model(mask_ratio=ratio, top_k=top_k, **ALWAYS).train()
    output = model(PIXELS)
    assert output.bool_masked_pos.shape == (3, 16) and (output.bool_masked_pos.sum(1) == hidden).all()
    assert output.loss > 0
    if top_k == 16:
        assert output.patch_indices is None
    else:
        assert output.patch_indices.shape == (3, top_k)
        assert (output.bool_masked_pos.gather(1, output.patch_indices).sum(1) == hidden).all()
    assert not torch.equal(model(PIXELS).bool_masked_pos, output.bool_masked_pos)
    assert model.vit.selector.step == 2  # one for each batch


def test_the_loss_is_the_error_of_hidden_patches_normalised():
    model = masked_model().eval()
    mask = torch.zeros(3, 16, dtype=torch.bool)
    hidden = [(0, 3), (0, 9), (2, 14)]
    for image, patch in hidden:
        mask[image, patch] = True
    output = model(PIXELS, bool_masked_pos=mask)
    tokens = model.vit(PIXELS, bool_masked_pos=mask).last_hidden_state
    errors = []
    for image, patch in hidden:
        target = patch_of(PIXELS, patch)[image].flatten()
        target = (target - target.mean()) / (target.var(correction=0) + 1e-6).sqrt()
        errors.append((model.decoder(tokens[image, 1 + patch]) - target).square().mean())
    torch.testing.assert_close(output.loss, torch.stack(errors).mean())


def test_hidden_patches_are_not_seen():
    model = masked_model().eval()
    mask = torch.zeros(3, 16, dtype=torch.bool)
    mask[:, 5] = True
    changed = PIXELS.clone()
    patch_of(changed, 5).add_(torch.randn(3, 3, 8, 8))
    tokens = [model.vit(x, bool_masked_pos=mask).last_hidden_state for x in (PIXELS, changed)]
    torch.testing.assert_close(*tokens)


def test_reconstruction_has_the_light_of_each_patch():
    model = masked_model().eval()
    output = model(PIXELS)
    assert output.reconstruction.shape == PIXELS.shape and output.loss is None and output.bool_masked_pos is None
    tokens = model.vit(PIXELS).last_hidden_state
    original = patch_of(PIXELS, 6)
    mean, std = original.mean((1, 2, 3), keepdim=True), original.std((1, 2, 3), correction=0, keepdim=True)
    expected = model.decoder(tokens[:, 7]).view(3, 3, 8, 8) * std + mean
    torch.testing.assert_close(patch_of(output.reconstruction, 6), expected, atol=1e-4, rtol=1e-4)


def test_dropped_patches_come_back_as_they_were_and_do_not_count():
    model = masked_model().eval()
    kept = torch.tensor([[0, 1, 2, 3]] * 3)
    mask = torch.zeros(3, 16, dtype=torch.bool)
    mask[:, [1, 12]] = True
    output = model(PIXELS, patch_indices=kept, bool_masked_pos=mask)
    assert torch.equal(output.reconstruction[:, :, 8:], PIXELS[:, :, 8:])
    assert not torch.allclose(output.reconstruction[:, :, :8], PIXELS[:, :, :8])
    mask[:, 12] = False
    torch.testing.assert_close(model(PIXELS, patch_indices=kept, bool_masked_pos=mask).loss, output.loss)
    mask[:, 1] = False
    assert model(PIXELS, patch_indices=kept, bool_masked_pos=mask).loss == 0  # nothing hidden, no NaN


def test_even_patches_make_no_nan():
    model = masked_model(top_k=8, **ALWAYS).train()
    loss = model(torch.zeros_like(PIXELS)).loss
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_other_sizes_and_bad_masks():
    model = masked_model(top_k=8, **ALWAYS).train()
    larger = model(torch.randn(2, 3, 48, 64), interpolate_pos_encoding=True)
    assert larger.reconstruction.shape == (2, 3, 48, 64) and larger.bool_masked_pos.shape == (2, 48)
    with pytest.raises(ValueError, match=r"bool_masked_pos must be \(batch, patches\) = \(3, 16\), got \(3, 15\)"):
        model.eval()(PIXELS, bool_masked_pos=torch.zeros(3, 15, dtype=torch.bool))
    with pytest.raises(ValueError, match="pixel_values is missing"):
        model.train()()


def test_it_learns_to_fill_in_an_image():
    torch.manual_seed(0)
    stripes = torch.sin(torch.arange(32) / 3).expand(1, 3, 32, 32).clone() * torch.tensor([1.0, 0.5, -1.0]).view(
        3, 1, 1
    )
    model = HuggingGreenViTForMaskedImageModeling(HuggingGreenViTConfig(**SIZES, prob=0.5)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        loss = model(stripes.expand(4, -1, -1, -1)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.9 and sum(losses[-5:]) / 5 < 0.1
