"""Muon for the hidden matrices of a model and AdamW for all else, as one optimizer: `optim: muon`.

Muon (Jordan et al. 2024) steps along an orthogonal matrix instead of the gradient:

    M ← μ M + (1 − μ) G,    O = NS((1 − μ) G + μ M) ≈ U Vᵀ,    W ← (1 − ηλ) W − 0.2 √max(n, m) η O    for W (n, m)

where U Σ Vᵀ is the matrix that NS, five Newton-Schulz iterations, is given. The factor makes a step as large as one
of AdamW (Liu et al. 2025, "Muon is Scalable for LLM Training"), so that both share one learning rate η.

Hidden matrices are the weights of linear layers, 1×1 convolutions included, in a model's blocks. Embeddings, heads,
norms, biases, tables and other convolutions stay with AdamW. Of a layer that makes q, k and v at once, each has a step
of its own.
"""

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers.pytorch_utils import Conv1D

from .errors import RunError

MUON = "muon"  # what `optim` calls it
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's: small singular values grow fast, all end near 1
JOINT = ("c_attn", "qkv", "qkv_proj", "Wqkv", "in_proj")  # layers of q, k and v in one, in three equal parts


class MuonWithAdamW(Optimizer):
    """
    Args:
        matrices: (W, dim, sizes) each: W (n, m) is cut along `dim` into matrices of these sizes.
        others: groups of parameters for AdamW, {"params": [...], "weight_decay": ...}.
        lr: of both.
        weight_decay: of matrices.
        momentum: μ.
    """

    def __init__(
        self,
        matrices: list[tuple[nn.Parameter, int, list[int]]],
        others: list[dict],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        weights, rest = [weight for weight, _, _ in matrices], [p for group in others for p in group["params"]]
        refuse_shards(weights + rest)
        fused = all(p.device.type in ("cpu", "cuda") for p in rest)
        self.adamw = AdamW(others, lr=lr, betas=betas, eps=eps, fused=fused)
        own = {"params": weights, "cuts": [(dim, sizes) for _, dim, sizes in matrices]}
        own |= {"weight_decay": weight_decay, "momentum": momentum}
        super().__init__([own, *self.adamw.param_groups], {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group, *others = self.param_groups
        self.adamw.param_groups, self.adamw.state = others, self.state  # a loaded state brings other objects
        self.adamw.step()
        self.step_matrices(group)
        return loss

    def step_matrices(self, group: dict) -> None:
        rate, shapes = group["lr"], {}
        for weight, (dim, sizes) in zip(group["params"], group["cuts"], strict=True):
            if weight.grad is None:
                continue
            kept = self.state[weight]
            if not kept:
                kept["momentum_buffer"] = torch.zeros_like(weight)
            momentum = kept["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
            direction = weight.grad.lerp(momentum, group["momentum"])
            weight.mul_(1 - rate * group["weight_decay"])
            parts = (x.flatten(1).split(sizes, dim) for x in (weight, direction))  # (out, in, 1, 1) of a convolution
            for part, towards in zip(*parts, strict=True):
                shapes.setdefault(part.shape, []).append((part, towards))
        for (rows, columns), pairs in shapes.items():
            steps = orthogonal(torch.stack([towards for _, towards in pairs]))
            for (part, _), step in zip(pairs, steps, strict=True):
                part.add_(step.to(part.dtype), alpha=-0.2 * max(rows, columns) ** 0.5 * rate)


def orthogonal(matrices: Tensor) -> Tensor:
    """(M, n, m) -> (M, n, m): about U Vᵀ of each U Σ Vᵀ, its singular values between 0.7 and 1.2

    X ← aX + (bA + cA²)X with A = X Xᵀ, five times. `torch.optim.Muon` does the same one by one in bfloat16, which
    processors without such arithmetic take 20 times as long for.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def muon_with_adamw(
    model: nn.Module, lr: float, weight_decay: float = 0.0, no_decay: tuple[str, ...] = (), **options
) -> MuonWithAdamW:
    """The optimizer of a model, ours, transformers' or any other.

        Trainer(model, args, optimizers=(muon_with_adamw(model, lr=3e-3, weight_decay=0.05), None), ...)

    Args:
        no_decay: names of parameters that weight decay must leave alone, beside all of fewer than two dimensions.
        options: momentum, betas, eps.
    """
    matrices = hidden_matrices(model)
    decayed, exempt = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in matrices:
            (exempt if parameter.dim() < 2 or name in no_decay else decayed).append(parameter)
    others = [{"params": decayed, "weight_decay": weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return MuonWithAdamW(list(matrices.values()), others, lr, weight_decay, **options)


def hidden_matrices(model: nn.Module) -> dict[str, tuple[nn.Parameter, int, list[int]]]:
    """The trained weights of linear layers in the model's blocks, by name, and how each is cut.

    Blocks are what stands in an `nn.ModuleList`; a 1×1 convolution is linear too. A layer may say itself which parts
    its outputs are made of, by an attribute `output_sizes`; otherwise its name tells whether q, k and v are in it.
    """
    lists = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    found = {}
    for name, module in model.named_modules():
        attribute, dim = weight_of(module) if name.startswith(lists) else (None, 0)
        weight = getattr(module, attribute) if attribute else None
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
            continue
        refuse_shards([weight])
        length, joint = weight.shape[dim], name.rpartition(".")[2] in JOINT or attribute == "in_proj_weight"
        sizes = getattr(module, "output_sizes", None) or ([length // 3] * 3 if joint and not length % 3 else [length])
        found[f"{name}.{attribute}"] = (weight, dim, list(sizes))
    return found


def weight_of(module: nn.Module) -> tuple[str | None, int]:
    """The name of a layer's matrix, if it has one, and which of its dimensions is that of the outputs."""
    if isinstance(module, nn.Linear):
        return "weight", 0
    if isinstance(module, Conv1D):  # stored (in, out)
        return "weight", 1
    if isinstance(module, nn.MultiheadAttention):
        return "in_proj_weight", 0
    if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1:
        return "weight", 0
    return None, 0


def refuse_shards(parameters: list[nn.Parameter]) -> None:
    """A part of a matrix can't be made orthogonal."""
    for parameter in parameters:
        # of DTensor, of DeepSpeed's ZeRO-3, of FSDP's first version
        if any(hasattr(parameter, mark) for mark in ("placements", "ds_id", "_is_flat_param")):
            raise RunError(
                "optim: muon needs whole matrices, but these weights are sharded (FSDP, DeepSpeed or tensor "
                "parallelism): use optim: adamw_torch, or train without sharding."
            )
