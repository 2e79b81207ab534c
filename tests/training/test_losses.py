"""Losses held to their formulas."""

import pytest
import torch
import torch.nn.functional as F

from hf_efficient.data.soft_labels import soften
from hf_efficient.training.losses import contrastive_loss, soft_cross_entropy


def test_soft_cross_entropy_is_the_loss_trainers_need():
    logits, hard = torch.randn(6, 5), torch.randint(0, 5, (6,))
    outputs = {"logits": logits}
    expected = F.cross_entropy(logits, hard)
    soft = soften(hard, 5, 0.0)
    for labels in (hard, soft):
        assert torch.allclose(soft_cross_entropy(outputs, labels), expected)
        assert torch.allclose(soft_cross_entropy((logits,), labels), expected)
    smooth = soften(hard, 5, 0.1)
    assert torch.allclose(soft_cross_entropy(outputs, smooth), F.cross_entropy(logits, hard, label_smoothing=0.1))
    # Two batches of unequal size accumulate to the mean over all images; the Trainer counts the labels' entries.
    for labels in (hard, smooth):
        parts = (
            soft_cross_entropy({"logits": logits[some]}, labels[some], torch.tensor(labels.numel()))
            for some in (slice(0, 4), slice(4, 6))
        )
        assert torch.allclose(sum(parts), soft_cross_entropy(outputs, labels))


def unit_vectors(count: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(
        torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1
    )


def formula(z, labels, margin) -> float:
    """As it is written, one pair after the other."""
    terms = []
    for a in range(len(z)):
        distances = [(z[a] - x).norm() for x in z]
        positives = [d**2 for b, d in enumerate(distances) if b != a and labels[b] == labels[a]]
        negatives = [d for b, d in enumerate(distances) if labels[b] != labels[a]]
        if positives and negatives:
            terms.append(sum(positives) / len(positives) + max(0, margin - min(negatives)) ** 2)
    return float(sum(terms) / len(terms))


@pytest.mark.parametrize("margin", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [5, 0, 0, 7, 0, 5], [0, 0, 1, 2, 3, 4]])
def test_the_loss_is_the_formula(labels, margin):
    z, labels = unit_vectors(6), torch.tensor(labels)
    assert contrastive_loss(z, labels, margin).item() == pytest.approx(formula(z, labels, margin), rel=1e-9)
    assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, labels, margin), z.requires_grad_())


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_without_anchors_the_loss_is_zero(labels):
    z = unit_vectors(3).requires_grad_()
    loss = contrastive_loss(z, torch.tensor(labels))
    loss.backward()
    assert loss == 0 and not z.grad.any()


def test_hard_negatives_are_the_worst_of_the_random_ones():
    z, labels = unit_vectors(20), torch.arange(20) % 4
    torch.manual_seed(0)
    drawn = torch.stack([contrastive_loss(z, labels, 1.5, "random") for _ in range(50)])
    assert len(drawn.unique()) > 10 and (drawn < contrastive_loss(z, labels, 1.5)).all()


def test_equal_vectors_of_different_classes_have_a_finite_gradient():
    z = torch.ones(4, 1, requires_grad=True)
    contrastive_loss(F.normalize(z, dim=1), torch.tensor([0, 0, 1, 1])).backward()
    assert z.grad.isfinite().all()
