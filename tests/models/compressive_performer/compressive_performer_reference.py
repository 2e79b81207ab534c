"""The language model as the paper's algorithm says, made exact: one text at a time, token lists, explicit matrices."""

import math

import torch
import torch.nn.functional as F

from hf_efficient.layers.ngrams import MULTIPLIER, PRIME


def turn(x, position, theta):
    """Rotary positions, pair by pair: x (..., D)."""
    turned = torch.empty_like(x)
    width = x.shape[-1]
    for i in range(width // 2):
        angle = position * theta ** (-2 * i / width)
        a, b = x[..., 2 * i], x[..., 2 * i + 1]
        turned[..., 2 * i] = a * math.cos(angle) - b * math.sin(angle)
        turned[..., 2 * i + 1] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def scaled(norm, x):
    """x (..., D) divided by its root mean square, times the gain, where a norm has one."""
    if not hasattr(norm, "weight"):
        return x
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.detach()


class Reference:
    """Computes what a model computes, with the model's weights.

    `memory[layer]` is (compressed, recent): lists of vectors (d,), oldest first. `auxiliary[layer]` collects what the
    compression loses, time after time.
    """

    def __init__(self, model):
        self.model, self.config = model.model, model.config
        self.head = model.lm_head
        self.memory = [([], []) for _ in self.model.layers]
        self.auxiliary = [[] for _ in self.model.layers]
        self.tokens = []  # all so far

    def logits(self, tokens):
        """tokens (N,) from the start of a text -> (N, vocab_size)"""
        segments = tokens.split(self.config.segment_length)
        return torch.cat([self.segment(segment) for segment in segments])

    def segment(self, tokens):
        hidden = second = torch.stack([self.embed(token) for token in tokens])  # (n, d)
        for index, layer in enumerate(self.model.layers):
            normed = layer.layernorm_before(second if self.config.reversible else hidden)
            attended = self.attend(index, layer.memory_attention, normed)
            hidden = hidden + attended
            fed = layer.mlp(layer.layernorm_after(hidden))
            if self.config.reversible:
                second = second + fed
            else:
                hidden = hidden + fed
            if len(tokens) == self.config.segment_length:
                self.remember(index, layer.memory_attention, normed)
        return self.head(self.model.norm((hidden + second) / 2 if self.config.reversible else hidden))

    def embed(self, token):
        """A token, and the n-grams that end with it: (d,)"""
        self.tokens.append(int(token))
        vector, longest = self.model.embed_tokens.weight[token], self.config.ngrams
        for length in range(longest, 1, -1):
            value = 1 + self.tokens[-1]
            for i in range(2, length + 1):
                value = (value * MULTIPLIER + (1 + self.tokens[-i] if len(self.tokens) >= i else 0)) % PRIME
            row = (longest - length) * self.config.ngram_buckets + value % self.config.ngram_buckets
            vector = vector + self.model.embed_ngrams.tables.weight[row]
        return vector

    def project(self, module, x):
        """(n, d) -> q, k, v (1, H, n, ·); q and k are normed if the model says so"""
        mechanism = module.attention
        projected = x @ module.qkv_proj.weight + module.qkv_proj.bias
        keys = module.key_vectors * mechanism.head_dim
        q, k, v = projected.split([module.width, keys, module.width], -1)
        q, k = (
            scaled(norm, x.unflatten(-1, (-1, mechanism.head_dim))).flatten(-2)
            for norm, x in ((module.q_norm, q), (module.k_norm, k))
        )
        if not keys:  # they are its queries
            k = q
        return tuple(y.unflatten(-1, (mechanism.num_heads, -1)).transpose(0, 1).unsqueeze(0) for y in (q, k, v))

    def positions(self, index, length):
        """Of compressed slots (their centres), recent ones, and the segment."""
        c, recent = self.config.compression_rate, self.config.memory_length
        filled = len(self.memory[index][0]), len(self.memory[index][1])
        compressed = [-recent - c * (filled[0] - s) + (c - 1) / 2 for s in range(filled[0])]
        return compressed + [s - filled[1] for s in range(filled[1])] + list(range(length))

    def attend(self, index, module, normed):
        mechanism = module.attention
        slots = [*self.memory[index][0], *self.memory[index][1]]
        everything = torch.cat([torch.stack(slots), normed]) if slots else normed
        q, k, v = self.project(module, everything)
        positions = self.positions(index, len(normed))
        q = torch.stack([self.turn(mechanism, q[:, :, i], p) for i, p in enumerate(positions)], 2)
        k = torch.stack([self.turn(mechanism, k[:, :, i], p) for i, p in enumerate(positions)], 2)
        # Queries of memory slots are computed here as well, and not looked at.
        output = mechanism.naive(q, k, v)[:, :, len(slots) :]
        return module.o_proj(output.squeeze(0).transpose(0, 1).flatten(1))

    def turn(self, mechanism, x, position):
        parts = x.split(mechanism.head_dim, -1)
        return torch.cat([turn(part, position, self.config.rope_theta) for part in parts], -1)

    def remember(self, index, module, normed):
        compressed, recent = self.memory[index]
        queue = recent + list(normed.detach())
        leaving = max(0, len(queue) - self.config.memory_length)
        old, recent = queue[:leaving], queue[leaving:]
        if old and self.config.compressed_memory_length:
            slots = [self.compress(module.compression, group) for group in groups(old, self.config.compression_rate)]
            self.auxiliary[index].append(self.loss(module, normed, torch.stack(old), torch.stack(slots)))
            compressed = (compressed + [slot.detach() for slot in slots])[-self.config.compressed_memory_length :]
        self.memory[index] = compressed, recent

    def compress(self, compression, group):
        """c vectors (d,) -> one"""
        if self.config.compression == "mean":
            return sum(group) / len(group)
        if self.config.compression == "max":
            return torch.stack(group).amax(0)
        width = len(group[0])
        blocks = compression.weight.split(width, 1)
        return sum(block @ x for block, x in zip(blocks, group, strict=True)) + compression.bias

    def loss(self, module, normed, old, new):
        """The compression's loss, with everything else detached."""
        if self.config.compression == "autoencoder":
            decoded = new @ module.compression.decoder_weight.T + module.compression.decoder_bias
            return F.mse_loss(decoded.view_as(old), old)
        if self.config.compression == "conv" and self.config.attention in ("performer", "softmax"):
            q = self.project(module, normed)[0].detach()
            return F.mse_loss(self.look(module, q, new), self.look(module, q, old).detach())
        return None

    def look(self, module, q, slots):
        """Every query at every slot, without positions, by the softmax or FAVOR+ formula."""
        weight, bias = module.qkv_proj.weight.detach(), module.qkv_proj.bias.detach()
        projected = slots @ weight[:, module.width :] + bias[module.width :]
        k, v = (x.unflatten(-1, (-1, q.shape[-1])).transpose(0, 1) for x in projected.split(module.width, -1))
        k = scaled(module.k_norm, k)
        if self.config.attention == "softmax":
            scores = torch.exp(q @ k.mT / q.shape[-1] ** 0.5)
        else:
            phi_q, phi_k = module.attention.literal_features(q, k, None, None)
            scores = phi_q @ phi_k.mT
        return scores / scores.sum(-1, keepdim=True) @ v


def groups(items, size):
    return [items[i : i + size] for i in range(0, len(items), size)]
