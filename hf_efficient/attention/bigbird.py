"""BigBird (Zaheer et al. 2020): blocks of b tokens see their neighbours, the two ends and a few random blocks.

    o_i = Σ_{j∈A(i)} softmax_j(q_i·k_j / √D) v_j,    j ∈ A(i)  ⇔  block(j) ∈ S(block(i)),
    S(m) = {m − 1, m, m + 1} ∪ {0, n − 1} ∪ R(m),   S(0) = S(n − 1) = all n blocks

R(m) are r blocks that are not in the other sets, all different, and each head's own. The numbers behind them are drawn
once and kept in a buffer; which blocks they mean follows from n. Cost O(N·b·(5 + r)·D): key blocks are gathered, and
nothing is N×N.

A(i) is a set: no key counts twice (in transformers' code the first block counts r + 1 times outside training, where
it draws no blocks). With n ≤ 4 + r blocks everybody sees everything, by the same rule; the published code turns to
full attention up to 5 + 2r, because of how it draws. Blocks are counted over a sample's real tokens, so that padding
changes none of them; masked tokens output 0.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention, check_positive
from .local import real_tokens
from .masking import masked_softmax, take_tokens, zero_masked
from .registry import register_attention
from .softmax import softmax_attention

RANGE = 2**31  # of the random numbers: integers, which no change of dtype rounds
DRAWN = 256  # blocks with random numbers of their own; block 256 has those of block 0


@register_attention
class Bigbird(Attention):
    """Softmax attention over neighbouring, first, last and random blocks.

    Args:
        block_size: b.
        num_random_blocks: r.
        seed: of the random blocks, together with `layer_idx`.
    """

    paper = "Zaheer 2020"
    cost = "Nb(5+r)D"
    parameter_free = True
    exempt_from = ("permutation",)

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        block_size: int = 64,
        num_random_blocks: int = 3,
        seed: int = 0,
        **common,
    ):
        super().__init__(hidden_size, num_heads, **common)
        check_positive("block_size", block_size)
        for field, value in (("num_random_blocks", num_random_blocks), ("seed", seed)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{field}={value!r} must be 0 or a positive integer.")
        self.block_size, self.num_random_blocks, self.seed = block_size, num_random_blocks, seed
        self.register_buffer("draws", torch.empty(num_heads, DRAWN, num_random_blocks, dtype=torch.long))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        generator = torch.Generator().manual_seed(self.seed * 65537 + self.layer_idx)
        self.draws.copy_(torch.randint(RANGE, self.draws.shape, generator=generator, device="cpu"))

    def attend(self, q, k, v, key_mask=None, position_ids=None):
        length, size = q.shape[2], self.block_size
        dropout = self.dropout if self.training else 0.0
        if length <= size * (4 + self.num_random_blocks):
            return zero_masked(softmax_attention(q, k, v, key_mask=key_mask, dropout=dropout), key_mask)
        if key_mask is not None:  # real tokens first, then the blocks are those of the sample alone
            order = (~key_mask).byte().argsort(dim=1, stable=True)
            q, k, v = (take_tokens(zero_masked(x, key_mask), order) for x in (q, k, v))
        real = F.pad(real_tokens(q, key_mask).sort(dim=1, descending=True)[0], (0, -length % size))
        q, k, v = (F.pad(x, (0, 0, 0, -length % size)) for x in (q, k, v))
        last = (real.sum(1, keepdim=True) - 1).clamp_min(0) // size  # (B, 1): a sample's last block
        ends = torch.cat([torch.zeros_like(last), last], 1)  # (B, 2)
        rows = (ends.unsqueeze(2) * size + torch.arange(size, device=q.device)).flatten(1)
        ends_output = softmax_attention(take_tokens(q, rows), k, v, key_mask=real, dropout=dropout)
        first_output, last_output = ends_output.unflatten(2, (2, 1, size)).unbind(2)  # (B, H, 1, b, D)

        output = self._gathered(q, k, v, real, last, dropout)  # (B, H, n, b, D)
        block = torch.arange(output.shape[2], device=q.device)
        output = torch.where((block == last)[:, None, :, None, None], last_output, output)
        output = torch.where((block == 0)[:, None, None], first_output, output).flatten(2, 3)[:, :, :length]
        return output if key_mask is None else zero_masked(take_tokens(output, order.argsort(1)), key_mask)

    def weights(self, q, k, key_mask=None, position_ids=None, rows=None):
        real = real_tokens(q, key_mask)
        block = (real.cumsum(1) - 1).clamp_min(0) // self.block_size  # (B, N)
        last = block[:, -1:]
        i = torch.arange(q.shape[2], device=q.device) if rows is None else rows
        own, other = block[:, None, i, None], block[:, None, None, :]  # (B, 1, S, 1), (B, 1, 1, N)
        end = last[..., None, None]
        seen = ((own - other).abs() <= 1) | (own == 0) | (own == end) | (other == 0) | (other == end)
        drawn, exists = self.random_blocks(last, int(last.max()) + 1)  # (B, H, n, r)
        for pick in range(self.num_random_blocks):
            at = block[:, None, i].expand(-1, self.num_heads, -1)  # (B, H, S)
            theirs, there = drawn[..., pick].gather(2, at), exists[..., pick].gather(2, at)
            seen = seen | ((theirs.unsqueeze(3) == other) & there.unsqueeze(3))
        seen = seen & real[:, None, i, None] & real[:, None, None, :]
        return masked_softmax(q[:, :, i] @ zero_masked(k, key_mask).mT * self.head_dim**-0.5, seen)

    def random_blocks(self, last: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """R(m) of blocks m < count where block `last` (B, 1) is a sample's last: (B, H, n, r), and whether there is
        such a block. A number u of 2³¹ chooses the ⌊u·free / 2³¹⌋-th of the blocks that are still free."""
        end = last.unsqueeze(2)  # (B, 1, 1)
        taken = _fixed_blocks(end, count).expand(-1, self.num_heads, -1, -1).clamp_min(0).sort(-1)[0]
        again = F.pad(taken[..., 1:] == taken[..., :-1], (1, 0)) | (taken > end.unsqueeze(3))
        nowhere = count + 1  # beyond every block, as often as needed
        taken = taken.masked_fill(again, nowhere).sort(-1)[0]
        chosen, exists = [], []
        for draw in self.draws[:, torch.arange(count, device=last.device) % DRAWN].unbind(-1):  # (H, n)
            free = end + 1 - (taken < nowhere).sum(-1)  # (B, H, n)
            pick = draw * free // RANGE
            for block in taken.unbind(-1):
                pick = pick + (pick >= block)
            chosen.append(pick.clamp(0, count - 1))
            exists.append(free > 0)
            taken = torch.cat([taken, pick.masked_fill(free <= 0, nowhere).unsqueeze(-1)], -1).sort(-1)[0]
        if not chosen:
            return taken[..., :0], taken[..., :0].bool()
        return torch.stack(chosen, -1), torch.stack(exists, -1)

    def _gathered(self, q, k, v, real, last, dropout):
        """Every block of queries against its blocks of keys, (B, H, N, D) -> (B, H, n, b, D)"""
        size, (batch, heads, length, _) = self.block_size, q.shape
        count = length // size
        drawn, exists = self.random_blocks(last, count)
        m, end = torch.arange(count, device=q.device), last.unsqueeze(2)
        # No block twice: the ends are left out where they are neighbours.
        inside = torch.stack(torch.broadcast_tensors(m >= 1, m >= 0, m < end, m > 1, m + 1 < end), -1)
        inside = torch.cat([inside.expand(-1, heads, -1, -1), exists], -1)  # (B, H, n, 5 + r)
        fixed = _fixed_blocks(end, count).clamp(0, count - 1)
        index = torch.cat([fixed.expand(-1, heads, -1, -1), drawn], -1)
        start = torch.arange(batch * heads, device=q.device).view(batch, heads, 1, 1) * count
        rows = (index + start).flatten()
        k, v = (x.reshape(batch * heads * count, -1).index_select(0, rows) for x in (k, v))
        real = real.unflatten(1, (count, size))  # (B, n, b)
        real = real.gather(1, index.flatten(1).unsqueeze(2).expand(-1, -1, size)).view(*index.shape, size)
        allowed = (real & inside.unsqueeze(-1)).flatten(3).flatten(0, 1).unsqueeze(2)  # (B·H, n, 1, (5 + r)·b)
        # Finite, so that a row which sees nothing becomes 0 and not NaN in the backward pass.
        mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, torch.finfo(q.dtype).min / 4)
        q = q.reshape(batch * heads, count, size, -1)
        k, v = (x.view(batch * heads, count, allowed.shape[-1], -1) for x in (k, v))
        output = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        return output.masked_fill(~allowed.any(-1, keepdim=True), 0).unflatten(0, (batch, heads))


def _fixed_blocks(end: Tensor, count: int) -> Tensor:
    """The neighbours of blocks m < count, and the two ends, `end` (B, 1, 1) the last: (B, 1, n, 5)"""
    m = torch.arange(count, device=end.device)
    return torch.stack(torch.broadcast_tensors(m - 1, m, m + 1, torch.zeros_like(end), end), -1)
