"""The formula over an N×N matrix: rows that sum to 1, and the fast form as its shortcut."""

import torch
from kernel_oracle import MAPS, both_ways, every_map, heads_first, inputs
from torch.testing import assert_close

from hf_efficient.linear import kernel_attention
from hf_efficient.linear.literal import literal_weights, row_normalise


@every_map
@both_ways
def test_the_fast_form_is_the_literal_one(name, causal):
    feature_map, phi = MAPS[name]
    q, k, v = heads_first(inputs(name))
    allowed = torch.ones(37, 37, dtype=torch.bool).tril() if causal else None
    assert_close(
        kernel_attention(q, k, v, feature_map, causal=causal)[0],
        literal_weights(phi(q), phi(k), allowed) @ v,
        atol=1e-9,
        rtol=1e-9,
    )


def test_rows_sum_to_one_or_see_nothing():
    scores = torch.rand(1, 1, 4, 6)
    allowed = torch.ones(4, 6, dtype=torch.bool)
    allowed[1] = False
    weights = row_normalise(scores, allowed)
    assert_close(weights.sum(-1), torch.tensor([[[1.0, 0.0, 1.0, 1.0]]]))
    assert row_normalise(scores, None, eps=1.0).sum(-1).amax() < 1
