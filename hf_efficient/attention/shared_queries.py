"""Mechanisms whose keys are their queries: q and k are one projection. What is handed over as k is not read."""

from .base import Attention, linear


class SharedQueries(Attention):
    key_dim = 0

    def build_projections(self, bias, output_bias):
        inner = self.num_heads * self.head_dim
        self.q_proj = linear(self.hidden_size, inner, bias)
        self.v_proj = linear(self.hidden_size, inner, bias)
        self.o_proj = linear(inner, self.hidden_size, output_bias)

    def project(self, hidden_states):
        q, v = self.q_proj(hidden_states), self.v_proj(hidden_states)
        if self.qk_norm:
            q = self.normalise_heads(q, self.q_norm)
        q, v = (x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2) for x in (q, v))
        return q, q, v
