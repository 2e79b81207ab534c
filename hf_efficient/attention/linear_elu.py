"""Linear attention with φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, "Transformers are RNNs").

o_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / (φ(q_i)·Σ_j φ(k_j) + 10⁻⁶),    F = D
"""

import torch.nn.functional as F

from ..linear.features import EluFeatures
from .kernel_attention import KernelAttention
from .registry import register_attention


@register_attention
class LinearElu(KernelAttention):
    """The plain linear transformer; no parameters beyond the projections."""

    paper = "Katharopoulos 2020"
    cost = "ND²"
    parameter_free = True
    supports_cross = True

    eps = 1e-6

    def __init__(self, hidden_size: int, num_heads: int, **common):
        super().__init__(hidden_size, num_heads, **common)
        self.feature_map = EluFeatures()

    def literal_features(self, q, k, key_mask, position_ids):
        return F.elu(q) + 1, F.elu(k) + 1
