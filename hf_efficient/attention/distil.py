"""Attention transfer: converted layers learn what the layers before them did, each for itself.

A layer ℓ of the teacher makes y = f_ℓ(x) of its input x; the student's layer g_ℓ, with another mechanism, learns

    min ‖g_ℓ(x) − f_ℓ(x)‖² / ‖f_ℓ(x)‖²    over real tokens, for the teacher's x

for all layers at once. No gradient goes from one layer to another, and no label is needed, so it takes minutes where
training anew would take days (Zhang et al. 2024, "LoLCATs"; Mercat et al. 2024).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .base import check_positive
from .sites import Call, Site, find_sites, observe, real_tokens, relative_square


@dataclass
class DistilledLayer:
    layer: str
    before: float  # ‖new − old‖ / ‖old‖ of the layer's output, for the teacher's input to it
    after: float


@dataclass
class DistilReport:
    """The error of each layer before and after."""

    steps: int
    layers: list[DistilledLayer] = field(default_factory=list)

    def __str__(self) -> str:
        width = max(len(layer.layer) for layer in self.layers)
        rows = [f"{layer.layer:<{width}}  {layer.before:12.4f}  {layer.after:12.4f}" for layer in self.layers]
        return "\n".join([f"{'layer':<{width}}  error before   error after", *rows])


def distil(
    student: nn.Module,
    teacher: nn.Module,
    data: Iterable,
    steps: int,
    *,
    optimizer: Callable[[list], torch.optim.Optimizer] | None = None,
    learning_rate: float = 1e-2,
    batch=None,
    seed: int = 0,
) -> DistilReport:
    """Brings the converted layers of the student back to the teacher's outputs, layer by layer.

    What learns are the attention modules of the student: the projections in them and what the mechanism adds. All else
    stays as it is, and so does the teacher. Dropout is off. The same arguments give the same weights.

    Args:
        student: changed in place; a copy of the teacher after `convert_attention`.
        teacher: the model before.
        data: batches, as a DataLoader or a list: keyword arguments for the model (labels are left out), or its single
            input. It begins again where it ends. Padding, by `attention_mask`, does not count.
        steps: batches to learn from.
        optimizer: makes one of a list of parameters, such as `lambda p: torch.optim.SGD(p, lr=0.1)`; by default AdamW
            without weight decay. Its learning rate falls linearly to 0.
        learning_rate: of the default optimizer.
        batch: where the errors of the report are measured; by default the first of `data`.
        seed: of what is drawn at random: by mechanisms, and by loaders without a generator of their own.

    Example:
        >>> teacher = copy.deepcopy(model)
        >>> convert_attention(model, "linear_elu")
        >>> print(distil(model, teacher, loader, steps=300))
    """
    check_positive("steps", steps)
    pairs = _pairs(student, teacher)
    originals = [original for original, _ in pairs]
    device = next(teacher.parameters()).device
    with torch.random.fork_rng(devices=[]), _learning([site for _, site in pairs]) as parameters:
        torch.manual_seed(seed)
        make = optimizer or partial(torch.optim.AdamW, lr=learning_rate, weight_decay=0.0)
        optimizer = make(parameters)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        batches = _batches(data, steps, device)
        first = next(batches)
        measured = first if batch is None else _prepared(batch, device)
        calls, real = observe(teacher, originals, measured)[0], real_tokens(measured)
        before = _errors(pairs, calls, real)
        bar = logging.tqdm(total=steps, desc="distil", unit="step")
        current = first
        for step in range(steps):
            if step:
                current = next(batches)
            loss = _loss(pairs, observe(teacher, originals, current)[0], real_tokens(current))
            if not loss.isfinite():
                raise ValueError(f"the loss of step {step} is {loss.item()}: a lower learning rate may help.")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
            if step % 10 == 0 or step == steps - 1:
                bar.set_postfix(error=f"{(loss.item() / len(pairs)) ** 0.5:.3f}")
        bar.close()
        after = _errors(pairs, calls, real)
    return DistilReport(steps, [DistilledLayer(name, before[name], after[name]) for name in before])


def _pairs(student: nn.Module, teacher: nn.Module) -> list[tuple[Site, Site]]:
    """The teacher's sites and the student's, by name, where they differ."""
    theirs, pairs = {site.name: site for site in find_sites(teacher)}, []
    shared = {id(p) for p in teacher.parameters()} & {id(p) for p in student.parameters()}
    if shared:
        raise ValueError(
            "student and teacher share weights, which the student would change: "
            "teacher = copy.deepcopy(model) before convert_attention(model, ...)."
        )
    for site in find_sites(student):
        if site.mechanism is None:
            continue
        if site.name not in theirs:
            raise ValueError(
                f"the student's attention {site.name} is not in the teacher, which has "
                f"{', '.join(theirs) or 'none'}: both must be models of the same class."
            )
        pairs.append((theirs[site.name], site))
    if not pairs:
        raise ValueError(
            f"the student, {type(student).__name__}, has no converted attention: convert_attention first."
        )
    return pairs


@contextmanager
def _learning(sites: list[Site]) -> Iterator[list[nn.Parameter]]:
    """The parameters of the sites, ready to learn without dropout; all is put back, and gradients are gone, after."""
    modules = [module for site in sites for module in site.module.modules()]
    modes = {module: module.training for module in modules}
    dropouts = {site.mechanism: site.mechanism.dropout for site in sites}
    parameters = list({id(p): p for site in sites for p in site.module.parameters()}.values())
    asked = [(p, p.requires_grad, p.grad) for p in parameters]
    try:
        for site in sites:
            site.module.eval()
            site.mechanism.training, site.mechanism.dropout = True, 0.0  # some learn by what they see while training
        for p in parameters:
            p.requires_grad_(p.is_floating_point())
        yield [p for p in parameters if p.requires_grad]
    finally:
        for module, mode in modes.items():
            module.training = mode
        for mechanism, dropout in dropouts.items():
            mechanism.dropout = dropout
        for p, requires_grad, grad in asked:
            p.requires_grad_(requires_grad).grad = grad


def _loss(pairs: list[tuple[Site, Site]], calls: dict[str, Call], real: Tensor | None) -> Tensor:
    """Σ over layers of ‖new − old‖² / ‖old‖²"""
    return sum(
        relative_square(calls[original.name].output, calls[original.name].replay(site.module), real)
        for original, site in pairs
    )


def _errors(pairs, calls, real) -> dict[str, float]:
    """The relative error of each layer, in evaluation."""
    errors = {}
    for original, site in pairs:
        mode, site.mechanism.training = site.mechanism.training, False
        with torch.no_grad():
            new = calls[original.name].replay(site.module)
        errors[site.name] = relative_square(calls[original.name].output, new, real).sqrt().item()
        site.mechanism.training = mode
    return errors


def _batches(data: Iterable, steps: int, device) -> Iterator:
    """As many batches as there are steps, from the beginning again where the data end."""
    given = 0
    while True:
        before = given
        for batch in data:
            given += 1
            yield _prepared(batch, device)
        if given == before:
            raise ValueError(
                f"data ended after {given} of {steps} batches and can't begin again: give a DataLoader or a list."
                if given
                else "data holds no batch."
            )


def _prepared(batch, device):
    """On the device, without labels."""
    if isinstance(batch, Mapping):
        return {name: _prepared(x, device) for name, x in batch.items() if name not in ("labels", "label")}
    return batch.to(device) if isinstance(batch, Tensor) else batch
