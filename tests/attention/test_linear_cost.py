"""Sparse mechanisms make no N×N tensor, forwards or backwards: twice the tokens, at most twice the largest tensor."""

import pytest
import torch
from largest_tensor import LargestTensor

from hf_efficient.attention import build_attention


def largest(attention, length, key_mask):
    q, k, v = (torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3))
    mask = (torch.arange(length) < length - 3).unsqueeze(0) if key_mask else None
    with LargestTensor() as mode:
        attention.attend(q, k, v, key_mask=mask).sum().backward()
    return mode.numel


CASES = [
    ("local", {"window": 8}),
    ("longformer", {"window": 8, "num_global": 4}),
    ("bigbird", {"block_size": 8, "num_random_blocks": 2}),
    ("dct", {"num_coefficients": 8}),
    ("skyformer", {"num_landmarks": 8}),
    ("yoso", {"num_hashes": 2, "hash_bits": 3, "gradient_queries": 64}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
@pytest.mark.parametrize("key_mask", [False, True], ids=["whole", "padded"])
def test_twice_the_tokens_twice_the_memory(name, options, key_mask):
    attention = build_attention(name, 4, 1, projections=False, **options)
    assert largest(attention, 2048, key_mask) <= 2.1 * largest(attention, 1024, key_mask) < 1024**2
