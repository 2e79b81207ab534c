"""EcoFormer: its codes, how their hash is learnt, and what they spare."""

import torch
from cases import HEADS, HIDDEN, make, tokens
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from hf_efficient.attention import build_attention
from hf_efficient.attention.ecoformer import disagreement, liked, sampled, signs

HASH = ("anchors", "variance", "mean", "mixing")


def fresh(**options):
    torch.manual_seed(0)
    return build_attention("ecoformer", HIDDEN, HEADS, **options).train()


def clusters(count=120, batch=2):
    """Tokens of four directions, far from what an untrained hash expects: (B, H, N, D)"""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(HEADS, 4, 8, generator=generator)
    which = torch.arange(count) % 4
    noise = torch.randn(batch, HEADS, count, 8, generator=generator)
    return 0.02 * (3 * centres[:, which] + 0.3 * noise), which


def codes(attention, x):
    return attention.prepare(x, x, None, None)[0][..., :-1]


def test_the_kernel_counts_equal_bits():
    attention = make(("ecoformer", {}, False))
    x = attention.project(tokens(2, 20))[0]
    phi = attention.prepare(x, x, None, None)[0]
    assert phi.shape == (2, HEADS, 20, 17)
    assert phi[..., :-1].abs().eq(1).all()
    equal = (phi.unsqueeze(3) == phi.unsqueeze(2))[..., :-1].sum(-1)
    assert_close(phi @ phi.mT, 2 * equal.to(phi))  # h·h + b: twice the number of bits that agree


def test_learning_tells_clusters_apart():
    x, which = clusters()
    attention = fresh()
    sample = sampled(x, None)
    wanted = liked(sample)
    before = disagreement(codes(attention, sample.unsqueeze(0))[0], wanted)
    attention.learn(x)
    after = disagreement(codes(attention, sample.unsqueeze(0))[0], wanted)
    assert (after < 0.7 * before).all()
    found = codes(attention, x)
    agreement = (found @ found.mT).mean((0, 1)) / 16
    same = which[:, None] == which
    assert agreement[same].mean() > agreement[~same].mean() + 0.8
    for head in found.detach().movedim(1, 0).flatten(1, 2):
        assert len({tuple(bit.tolist()) for bit in head.T}) > 2, "bits ask different questions"


def test_a_hash_that_is_no_better_is_not_kept():
    x, _ = clusters()
    attention = fresh()
    attention.learn(x)
    for _ in range(3):  # of the same tokens: it may improve, and never get worse
        wanted = liked(sampled(x, None))
        before = disagreement(codes(attention, sampled(x, None).unsqueeze(0))[0], wanted)
        attention.learn(x)
        assert (disagreement(codes(attention, sampled(x, None).unsqueeze(0))[0], wanted) <= before).all()
    attention.learn(torch.zeros_like(x))  # tokens that are all alike teach nothing, and break nothing
    assert all(getattr(attention, name).isfinite().all() for name in HASH)


def test_it_learns_at_every_interval_of_training_forwards():
    attention, x, learnt = fresh(hash_interval=3), tokens(2, 30, torch.float32), []
    for step in range(1, 8):
        before = attention.anchors
        attention(x)
        if attention.anchors is not before:
            learnt.append(step)
    assert learnt == [1, 4, 7]
    before = attention.anchors
    attention.eval()(x)
    never = fresh(hash_interval=0)
    never(x)
    assert attention.anchors is before and int(attention.forwards) == 7 and int(never.forwards) == 0


def test_a_recomputed_region_sees_the_hash_of_its_first_run():
    x, found = tokens(2, 30, torch.float32).requires_grad_(), []
    for run in (lambda f: f(x), lambda f: checkpoint(f, x, use_reentrant=False)):
        attention = fresh(hash_interval=1)
        output = run(lambda x, attention=attention: attention(x).hidden_states)
        found.append((output, *torch.autograd.grad(output.square().sum(), x)))
        assert int(attention.forwards) == 1
    assert_close(*found)


def test_padding_teaches_nothing():
    x, _ = clusters(40)
    mask = torch.arange(40).expand(2, 40) < torch.tensor([[40], [25]])
    hostile = x.masked_fill(~mask[:, None, :, None], float("nan"))
    sample = sampled(hostile, mask)
    real = torch.cat([x[0], x[1, :, :25]], 1)
    assert all(any(torch.equal(token, other) for other in real[0]) for token in sample[0])
    assert not sampled(hostile, torch.zeros_like(mask)).any()
    attention = fresh()
    attention.learn(hostile, mask)
    assert all(getattr(attention, name).isfinite().all() for name in HASH)


def test_the_count_of_operations():
    count = fresh(num_bits=16, num_anchors=25).operations(1000)
    assert count["ecoformer"]["multiplications"] == HEADS * 1000 * (25 * (8 + 16) + 8)
    assert count["softmax"]["multiplications"] == HEADS * 1000**2 * (2 * 8 + 1)
    assert signs(torch.tensor([-2.0, 0.0, 3.0])).tolist() == [-1, 1, 1]
