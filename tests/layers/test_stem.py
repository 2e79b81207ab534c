"""Convolutional stems: what a token sees, and what is computed of patches that are dropped."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hf_efficient.layers.patch_embedding import ImageEmbeddings
from hf_efficient.layers.stem import ConvolutionalStem

KEPT = torch.tensor([[0, 3, 5], [2, 9, 15]])
both = pytest.mark.parametrize("overlaps", [True, False])


def images(size=16, batch=2):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def stem(overlaps, patch_size=4, **fields):
    """With statistics and gains of no fresh BatchNorm."""
    found = ConvolutionalStem(patch_size, 3, 24, overlaps=overlaps, **fields)
    for layer in found.layers:
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(layer.weight)
            torch.nn.init.normal_(layer.running_mean)
    return found.eval()


@both
@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
def test_one_token_for_each_patch(overlaps, patch_size):
    made = stem(overlaps, patch_size)
    assert made(images(32)).shape == (2, (32 // patch_size) ** 2, 24)
    assert made.projection.in_features == 24 and made(images(32), KEPT[:, :1]).shape == (2, 1, 24)
    assert stem(overlaps, 4, width=5).projection.in_features == 10


@both
def test_kept_tokens_are_those_of_the_whole_image(overlaps):
    made, pixels = stem(overlaps), images()
    whole = made(pixels)
    expected = torch.stack([whole[0, KEPT[0]], whole[1, KEPT[1]]])
    torch.testing.assert_close(made(pixels, KEPT), expected, atol=1e-6, rtol=1e-5)


def test_what_a_token_knows_of_its_neighbours():
    pixels, changed = images(), images()
    changed[:, :, :4, 4:8] += 1  # patch 1
    for overlaps in (True, False):
        made = stem(overlaps)
        differs = (made(pixels) != made(changed)).any(2).any(0).nonzero().flatten().tolist()
        assert differs == ([0, 1, 2, 4, 5, 6] if overlaps else [1])


def test_per_patch_stems_compute_kept_patches_only():
    flops = []
    for indices in (None, KEPT):
        with FlopCounterMode(display=False) as counter:
            stem(False)(images(), indices)
        flops.append(counter.get_total_flops())
    assert flops[1] * 16 == flops[0] * 3


@both
def test_every_weight_learns_from_kept_patches(overlaps):
    made = stem(overlaps).train()
    made(images(), KEPT).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in made.parameters())


@both
def test_masked_pixels_reach_no_token(overlaps):
    """Or masked image modelling could read off a neighbour's token what it is to predict."""
    embeddings = ImageEmbeddings((16, 16), 4, 3, 24, use_mask_token=True, stem=stem(overlaps)).eval()
    masked = torch.zeros(2, 16, dtype=torch.bool)
    masked[:, [1, 6]] = True
    pixels, changed = images(), images()
    changed[:, :, :4, 4:8] += 1
    seen = [embeddings(x, bool_masked_pos=masked).hidden_states for x in (pixels, changed)]
    assert torch.equal(*seen)
    assert not torch.equal(embeddings(pixels).hidden_states, embeddings(changed).hidden_states)


@pytest.mark.parametrize("patch_size", [0, 1, 3, 12])
def test_other_patch_sizes_are_named(patch_size):
    with pytest.raises(ValueError, match=f"patch_size={patch_size} must be 2, 4, 8, 16"):
        ConvolutionalStem(patch_size, 3, 24)
