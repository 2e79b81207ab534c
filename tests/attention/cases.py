"""The mechanisms under test: every registered name with its defaults, and its options."""

import torch

from hf_efficient.attention import build_attention, get_attention, list_attentions

HIDDEN, HEADS = 16, 2

OPTIONS = {
    "kerformer": [
        {"q_act": "identity"},
        {"k_act": "identity"},
        {"se_k": False},
        {"key_softmax": "sequence"},
        {"se_pool": "mean", "allow_degenerate": True},
        {"se_mode": "conv", "conv_kernel": 3},
        {"chunk_size": 5},
    ],
    "linear_elu": [{"chunk_size": 3}, {"head_dim": 5}],
    "performer": [{"features": "relu"}, {"epsilon": 0.0}, {"norms": "sqrt", "num_features": 11, "chunk_size": 7}],
    "rfa": [{"gate": True, "num_features": 5}, {"num_features": 5, "chunk_size": 7}],
    "skyformer": [{"num_landmarks": 14, "landmarks": "random"}, {"num_landmarks": 14, "inverse": "newton"}],
    "yoso": [{"num_hashes": 0}, {"num_hashes": 3, "hash_bits": 2}],
    "ecoformer": [{"num_bits": 5, "num_anchors": 7, "chunk_size": 5}],
    "cosformer": [{"max_length": 1000}],
    "linformer": [{"share_kv": True, "num_projections": 7}],
    "separable": [{"num_latent_tokens": 4}],
    "probabilistic": [
        {"prior": "uniform"},
        {"key_iterations": 2},
        {"key_iterations": 1, "prior": "uniform"},
        {"value_propagation": True, "value_strength": 0.5},
        {"value_propagation": True, "key_iterations": 1},
    ],
    "gaussian_mixture": [
        {"keys": "multi", "num_keys": 3},
        {"mode": "hard"},
        {"mode": "em"},
        {"learn_variance": True},
        {"num_keys": 1},
        {"linear": True},
    ],
    "local": [{"window": 5}],
    "longformer": [
        {"window": 5, "num_global": 3},
        {"window": 3, "dilation": 2, "num_global": 0},
        {"window": 3, "dilation": 3, "num_global": 2},
        {"window": 5, "num_global": 2, "separate_global": True},
    ],
    "differential": [{"bits": None}, {"bits": 3}],
    "dct": [{"num_coefficients": 7}],
    "axial": [{"axes": "rows"}, {"axes": "columns"}],
    "window": [{"window": 3, "shift": True}, {"window": 3, "shift": True, "version": 2}],
    "bigbird": [{"block_size": 2, "num_random_blocks": 1}, {"block_size": 3, "num_random_blocks": 0}],
    "lsh": [{"num_buckets": 4, "chunk_size": 4, "num_rounds": 1}],
    "nystrom": [{"num_landmarks": 7}, {"num_landmarks": 7, "conv_kernel": 5}],
    "mixer": [{"token_dim": 9}],
}


def every_case():
    for name in list_attentions():
        for options in [{}, *OPTIONS.get(name, [])]:
            for causal in (False, True):
                if can_be_causal(name, options) if causal else not options.get("gate"):
                    yield name, options, causal


def can_be_causal(name, options):
    if not get_attention(name).supports_causal:
        return False
    return (
        not ({"key_iterations", "value_propagation", "separate_global"} & set(options))
        and options.get("key_softmax") != "sequence"
    )


def case_id(case):
    name, options, causal = case
    shown = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}({shown}){'-causal' if causal else ''}"


CASES = list(every_case())
CAUSAL = [case for case in CASES if case[2]]
CROSS = [case for case in CASES if not case[2] and build_attention(case[0], HIDDEN, HEADS, **case[1]).supports_cross]


def make(case, dtype=torch.float64, **more):
    """The mechanism with every parameter moved off its initial value, so that no-ops at the start are not tested."""
    name, options, causal = case
    attention = build_attention(name, HIDDEN, HEADS, causal=causal, **options, **more).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype))
    return attention.eval()


def tokens(batch, length, dtype=torch.float64, seed=2, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(batch, length, HIDDEN, generator=generator, dtype=torch.float64)).to(dtype)


def where(attention, length):
    """The grid, for mechanisms that need one."""
    if not attention.needs_grid:
        return {}
    rows = max(r for r in range(1, int(length**0.5) + 1) if length % r == 0)
    return {"grid": (rows, length // rows)}
