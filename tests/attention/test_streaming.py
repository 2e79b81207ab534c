"""How the kernel engine runs: tiles, scratch memory, threads, what it allocates, compilation."""

import threading

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
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from hf_efficient.attention import build_attention, kernel, tile
from hf_efficient.attention.kernel import kernel_attention
from hf_efficient.attention.linear_elu import EluFeatures


@every_map
@both_ways
def test_several_tiles_of_the_batch(name, causal, monkeypatch):
    monkeypatch.setattr(tile, "TILE", 2 * 2 * 8 * 4)  # two rows of the batch at a time; buffers not kept
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
    monkeypatch.setattr(kernel, "KEPT_FEATURES", kept)
    leaves, weight = inputs(name, length=length), weight_for("mask", length=length)
    q, k, v = heads_first(leaves)
    for key_weight in (None, weight):
        fast, state = kernel_attention(
            q, k, v, MAPS[name][0], causal=causal, key_weight=key_weight, chunk_size=16, block_size=4
        )
        assert_equal_with_gradients((fast, total_of(state)), explicit(name, q, k, v, causal, key_weight), leaves)


@every_map
@both_ways
def test_what_an_earlier_call_left_in_scratch_memory_is_not_read(name, causal):
    hostile = [torch.full_like(x, torch.nan).requires_grad_() for x in inputs(name, length=60)]
    output, _ = kernel_attention(*heads_first(hostile), MAPS[name][0], causal=causal, chunk_size=8, block_size=4)
    output.sum().backward()
    leaves = inputs(name)
    q, k, v = heads_first(leaves)
    fast, state = kernel_attention(q, k, v, MAPS[name][0], causal=causal, chunk_size=8, block_size=4)
    assert_equal_with_gradients((fast, total_of(state)), explicit(name, q, k, v, causal), leaves)


def test_scratch_memory_does_not_grow_with_every_length_seen():
    for length in range(1, 120):
        leaves = inputs("elu", 1, 1, length, 2, 2)
        q, k, v = heads_first(leaves)
        output, _ = kernel_attention(q, k, v, EluFeatures(), causal=True, block_size=16)
        assert_close(output, explicit("elu", q, k, v, True)[0], atol=1e-11, rtol=1e-9)
        output.sum().backward()
    assert len(tile._kept.__dict__) < 1500


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


def test_threads_do_not_share_scratch_memory():
    def work(leaves):
        output, _ = kernel_attention(*heads_first(leaves), EluFeatures(), causal=True, chunk_size=16)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    jobs = [inputs("elu", length=400) for _ in range(2)]
    alone, wrong = [work(leaves) for leaves in jobs], []

    def repeat(leaves, expected):
        for _ in range(10):
            wrong.extend(1 for a, b in zip(work(leaves), expected, strict=True) if not torch.equal(a, b))

    threads = [threading.Thread(target=repeat, args=pair) for pair in zip(jobs, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class LargestTensor(TorchDispatchMode):
    """How many elements the largest result of any operation has."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.numel())
        return result


@both_ways
def test_no_tensor_of_all_features_exists(causal):
    length, features = 512, 96
    attention = build_attention("performer", 8, 1, causal=causal, num_features=features, chunk_size=64)
    x = torch.randn(1, length, 8, requires_grad=True)
    with LargestTensor() as seen:
        attention(x).hidden_states.sum().backward()
    with LargestTensor() as naive:
        attention.reference(x).sum().backward()
    assert naive.largest >= length * features
    assert seen.largest <= 64 * features * 2, "no more than a chunk's features, or a few blocks' states"


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
