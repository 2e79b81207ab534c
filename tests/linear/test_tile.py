"""How the kernel engine runs: tiles, what it keeps and what it allocates, compilation."""

import pytest
import torch
from kernel_oracle import (
    MAPS,
    assert_equal_with_gradients,
    both_ways,
    every_map,
    explicit,
    heads_first,
    inputs,
    total_of,
    weight_for,
)
from largest_tensor import LargestTensor
from torch.testing import assert_close

from hf_efficient.attention import build_attention
from hf_efficient.linear import chunked, kernel_attention, scratch, tile


@every_map
@both_ways
def test_several_tiles_of_the_batch(name, causal, monkeypatch):
    for module in (tile, scratch):  # two rows of the batch at a time; buffers not kept
        monkeypatch.setattr(module, "TILE", 2 * 2 * 8 * 4)
    leaves, weight = inputs(name, batch=5), weight_for("mask", batch=5)
    q, k, v = heads_first(leaves)
    fast, state = kernel_attention(
        q, k, v, MAPS[name][0], causal=causal, key_weight=weight, chunk_size=8, block_size=4
    )
    assert_equal_with_gradients((fast, total_of(state)), explicit(name, q, k, v, causal, weight), leaves)


@every_map
@both_ways
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("length", [3, 8, 37])
def test_features_and_states_are_kept_or_made_again(name, causal, kept, length, monkeypatch):
    monkeypatch.setattr(chunked, "KEPT_FEATURES", kept)
    monkeypatch.setattr(chunked, "KEPT_LENGTH", 0)
    leaves, weight = inputs(name, length=length), weight_for("mask", length=length)
    q, k, v = heads_first(leaves)
    for key_weight in (None, weight):
        fast, state = kernel_attention(
            q, k, v, MAPS[name][0], causal=causal, key_weight=key_weight, chunk_size=16, block_size=4
        )
        assert_equal_with_gradients((fast, total_of(state)), explicit(name, q, k, v, causal, key_weight), leaves)


@every_map
@both_ways
def test_backward_twice_and_training_after_inference_mode(name, causal):
    leaves, options = inputs(name), {"causal": causal, "key_weight": weight_for("dropout"), "chunk_size": 16}
    with torch.inference_mode():
        first, _ = kernel_attention(*heads_first(leaves), MAPS[name][0], **options)
    output, _ = kernel_attention(*heads_first(leaves), MAPS[name][0], **options)
    assert torch.equal(first, output)
    a, b = (torch.autograd.grad(output.square().sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@both_ways
def test_no_tensor_of_all_features_exists(causal):
    length, features = 512, 96
    attention = build_attention("performer", 8, 1, causal=causal, num_features=features, chunk_size=64)
    x = torch.randn(1, length, 8, requires_grad=True)
    with LargestTensor() as seen:
        attention(x).hidden_states.sum().backward()
    with LargestTensor() as naive:
        attention.reference(x).sum().backward()
    assert naive.numel >= length * features
    assert seen.numel <= 64 * features * 2, "no more than a chunk's features, or a few blocks' states"


def test_compiled_equals_eager():
    attention = build_attention("linear_elu", 8, 2, causal=True)
    x = torch.randn(2, 20, 8)
    compiled = torch.compile(attention, backend="aot_eager")
    results = []
    for run in (attention, compiled):
        leaf = x.clone().requires_grad_()
        output = run(leaf).hidden_states
        results.append((output, *torch.autograd.grad(output.square().sum(), [leaf, *attention.parameters()])))
    assert_close(results[1], results[0], atol=1e-6, rtol=1e-5)
