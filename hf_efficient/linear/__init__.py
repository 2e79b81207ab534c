"""Linear attention: o_i = φ(q_i)·S_i / φ(q_i)·z_i with S_i = Σ_j φ(k_j) v_jᵀ and z_i = Σ_j φ(k_j), in O(N).

    features.py, favor_plus.py      φ, with its derivative
    chunked.py                      many tokens at once: `chunked_causal.py` and `chunked_bidirectional.py` hold the
                                    forward and the backward pass, `tile.py` what both do to a chunk of tokens
    recurrent.py                    one token
    literal.py                      the formula over an N×N matrix, for the tests
    prefix_softmax.py               keys that are normalised over the tokens
    heads_first.py                  features in the order of memory that the engine reads
    stabilise.py, scratch.py        range of the exponentials; memory that is used again

It knows tensors only: `hf_efficient.attention` makes mechanisms of it.
"""

from .chunked import kernel_attention
from .features import EluFeatures, FeatureMap, LogFeatureMap
from .recurrent import kernel_step
from .scratch import release_scratch
from .state import State, initial_state

__all__ = [
    "EluFeatures",
    "FeatureMap",
    "LogFeatureMap",
    "State",
    "initial_state",
    "kernel_attention",
    "kernel_step",
    "release_scratch",
]
