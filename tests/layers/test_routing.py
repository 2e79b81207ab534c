import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hf_efficient.attention import build_attention, get_attention, list_attentions
from hf_efficient.layers import HeadRouter, TokenRouter, attach_sparsity

HAVE_HEADS = [name for name in list_attentions() if (cls := get_attention(name)).per_head and not cls.needs_grid]


class Block(nn.Module):
    """Attention and an MLP, residuals included."""

    def __init__(self, name="softmax", hidden_size=16, **options):
        super().__init__()
        self.attention = build_attention(name, hidden_size, 2, **options)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 32), nn.GELU(), nn.Linear(32, hidden_size))

    def forward(self, x, key_mask=None, position_ids=None):
        x = x + self.attention(x, key_mask=key_mask, position_ids=position_ids).hidden_states
        return x + self.mlp(x)


def flops(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops()


def random_gate(router):
    nn.init.normal_(router.gate.weight)
    return router


def left_and_right_padded(x):
    """x (1, N, d) between 2 and 3 tokens of NaN, and the mask."""
    length = x.shape[1]
    mask = torch.zeros(1, length + 5, dtype=torch.bool)
    mask[:, 2 : 2 + length] = True
    return nn.functional.pad(x, (0, 0, 2, 3), value=float("nan")), mask


# Heads.


@pytest.mark.parametrize("name", HAVE_HEADS)
@pytest.mark.parametrize("head_dim", [None, 5])
def test_all_heads_equal_multi_head_attention(name, head_dim):
    attention = build_attention(name, 16, 4, head_dim=head_dim).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.3)
    router = HeadRouter.from_attention(attention, capacity=4)
    assert not router.training
    x, mask = torch.randn(3, 11, 16), torch.ones(3, 11, dtype=torch.bool)
    mask[1, 8:] = False
    output = router(x, mask)
    torch.testing.assert_close(output.hidden_states[mask], attention(x, mask).hidden_states[mask])
    assert output.selected.all()
    torch.testing.assert_close(output.balance, torch.tensor(1.0))


def test_options_of_the_attention_are_kept():
    attention = build_attention("linformer", 16, 4, max_length=20, num_projections=6, bias=False, output_bias=False)
    router = HeadRouter.from_attention(attention, capacity=2)
    head = router.heads[0]
    assert (head.max_length, head.num_projections, head.q_proj.bias, router.output_bias) == (20, 6, None, None)
    with pytest.raises(ValueError, match=r"E of shape \(6, 20\) can't be split"):
        HeadRouter.from_attention(attention, capacity=2, max_length=30)
    with pytest.raises(ValueError, match="differ in F: give its options"):
        HeadRouter.from_attention(attention, capacity=2, share_kv=True)


def test_the_formula():
    router, x = random_gate(HeadRouter("softmax", 16, 4, capacity=2)).eval(), torch.randn(3, 7, 16)
    nn.init.normal_(router.output_bias)
    output = router(x)
    for b in range(3):
        s = (nn.functional.layer_norm(x[b], (16,)).mean(0) @ router.gate.weight.T).softmax(-1)
        top = s.topk(2).indices
        assert output.selected[b].nonzero().flatten().tolist() == sorted(top.tolist())
        heads = [2 * s[h] / s[top].sum() * router.heads[h](x[b : b + 1]).hidden_states[0] for h in top]
        torch.testing.assert_close(output.hidden_states[b], sum(heads) + router.output_bias)


@pytest.mark.parametrize("training", [False, True])
def test_flops_fall_with_capacity(training):
    x = torch.randn(4, 32, 64)
    counts = [flops(HeadRouter("softmax", 64, 8, capacity).train(training), x) for capacity in (1, 2, 4, 8)]
    for count, capacity in zip(counts, (1, 2, 4, 8), strict=True):
        assert count / counts[-1] == pytest.approx(capacity / 8, rel=0.01)


def test_head_routing_is_per_sample():
    router, x = random_gate(HeadRouter("softmax", 16, 4, capacity=2)).eval(), torch.randn(5, 7, 16)
    output = router(x)
    assert len(output.selected.unique(dim=0)) > 1
    for b in range(5):
        torch.testing.assert_close(router(x[b : b + 1]).hidden_states[0], output.hidden_states[b])
    x[0] = torch.nan
    torch.testing.assert_close(router(x).hidden_states[1:], output.hidden_states[1:])


def test_head_routing_ignores_padding():
    router, x = random_gate(HeadRouter("linformer", 16, 4, capacity=2)).eval(), torch.randn(1, 7, 16)
    padded, mask = left_and_right_padded(x)
    torch.testing.assert_close(router(padded, mask).hidden_states[mask], router(x).hidden_states[0])


def test_gate_and_heads_get_gradients():
    router = HeadRouter("softmax", 16, 4, capacity=2)
    output = router(torch.randn(16, 7, 16))
    (output.hidden_states.square().mean() + 0.01 * output.balance).backward()
    for name, parameter in router.named_parameters():
        if not name.endswith("k_proj.bias"):  # shifts all logits of a softmax row alike
            assert parameter.grad.abs().sum() > 0, name


def test_noise_gives_every_head_its_turn_in_training_only():
    router, x = HeadRouter("softmax", 16, 4, capacity=1), torch.randn(64, 3, 16)
    assert router(x).selected.any(0).all()
    assert router.eval()(x).selected.sum(0).tolist() == [64, 0, 0, 0]


def test_balance_is_1_when_even_and_more_when_not():
    router, x = HeadRouter("softmax", 16, 4, capacity=1), torch.randn(8, 3, 16)
    torch.testing.assert_close(router(x).balance, torch.tensor(1.0))
    x = x.abs() * torch.linspace(-1, 1, 16)
    router.gate.weight.data[2] = torch.linspace(-2, 2, 16)
    balance = router.eval()(x).balance
    assert balance > 3
    balance.backward()
    assert router.gate.weight.grad.abs().sum() > 0


def test_sparsity_travels_through():
    router = HeadRouter("softmax", 16, 4, capacity=2)
    attach_sparsity(router)
    assert 0 < router(torch.randn(3, 7, 16)).sparsity <= 1


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("softmax", 16, 4, 5), {}, "capacity=5"),
        (("softmax", 16, 4, 0), {}, "capacity=0"),
        (("softmax", 16, 3, 1), {}, "give head_dim"),
        (("fnet", 16, 4, 2), {}, "'fnet' attention has no heads"),
        (("softmax", 16, 4, 2), {"causal": True}, "causal=True"),
        (("softmax", 16, 4, 2), {"window": 3}, "unknown option 'window'"),
    ],
)
def test_wrong_options_of_head_routing_are_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        HeadRouter(*arguments, **options)


# Tokens.


def test_routed_tokens_change_and_others_do_not():
    block, x = Block(), torch.randn(2, 10, 16)
    router = TokenRouter(block, 16, capacity=0.4)
    output = router(x)
    for b in range(2):
        r = router.router(x[b]).squeeze(-1)
        chosen = [0] + [i for i in r.argsort(descending=True).tolist() if i][:3]
        kept = x[b, sorted(chosen)]
        expected = x[b].clone()
        change = block(kept.unsqueeze(0), position_ids=torch.tensor([sorted(chosen)]))[0] - kept
        expected[sorted(chosen)] += r[sorted(chosen)].sigmoid().unsqueeze(-1) * change
        torch.testing.assert_close(output[b], expected)
        assert torch.equal(output[b].ne(x[b]).any(-1), torch.isin(torch.arange(10), torch.tensor(chosen)))


def test_the_block_gets_positions_of_the_kept_tokens():
    seen = {}

    def block(hidden_states, position_ids):
        seen["positions"] = position_ids
        return hidden_states + position_ids.unsqueeze(-1)

    router, x = TokenRouter(block, 4, capacity=0.5), torch.randn(2, 8, 4)
    router(x, position_ids=torch.arange(8) * 3)
    assert seen["positions"].shape == (2, 4)
    assert (seen["positions"] % 3 == 0).all()
    assert (seen["positions"].diff() > 0).all()
    assert (seen["positions"][:, 0] == 0).all()


def test_capacity_1_is_the_gated_block():
    block, x = Block(), torch.randn(2, 10, 16)
    router = TokenRouter(block, 16, capacity=1.0)
    torch.testing.assert_close(router(x), x + router.router(x).sigmoid() * (block(x) - x))


@pytest.mark.parametrize(("capacity", "length", "kept"), [(0.1, 30, 3), (0.25, 10, 3), (1e-3, 10, 1), (0.7, 10, 7)])
def test_number_of_routed_tokens(capacity, length, kept):
    router = TokenRouter(Block(), 16, capacity)
    scores = torch.randn(2, length)
    assert router.select(scores, None)[0].shape == (2, kept)
    chosen, mask = router.select(scores, torch.ones(2, length, dtype=torch.bool))
    assert chosen.shape == (2, kept)
    assert mask.all()


def test_flops_fall_with_the_tokens():
    x, block = torch.randn(2, 40, 16), Block("linear_elu")
    full = flops(TokenRouter(block, 16, 1.0), x)
    for capacity in (0.25, 0.5):
        assert flops(TokenRouter(block, 16, capacity), x) / full == pytest.approx(capacity, rel=0.03)  # w_r sees all


def test_token_routing_is_per_sample():
    router, x = TokenRouter(Block(), 16, capacity=0.5), torch.randn(4, 9, 16)
    output = router(x)
    for b in range(4):
        torch.testing.assert_close(router(x[b : b + 1])[0], output[b])


@pytest.mark.parametrize("name", ["softmax", "linformer"])
def test_token_routing_ignores_padding(name):
    router, x = TokenRouter(Block(name), 16, capacity=0.5), torch.randn(1, 9, 16)
    padded, mask = left_and_right_padded(x)
    torch.testing.assert_close(router(padded, mask)[mask], router(x)[0])


def test_router_weights_get_gradients():
    router = TokenRouter(Block(), 16, capacity=0.5)
    router(torch.randn(2, 9, 16)).square().sum().backward()
    assert router.router.weight.grad.abs().sum() > 0


def test_wrong_options_of_token_routing_are_named():
    with pytest.raises(ValueError, match=r"capacity=1\.5"):
        TokenRouter(Block(), 16, 1.5)
    with pytest.raises(ValueError, match="'softmax' attention, which is causal"):
        TokenRouter(Block(causal=True), 16, 0.5)
