"""Kerformer, Figures 6 to 8: accuracy and convergence of a ViT with linear attention."""

from .base import Claim, against
from .tiny import VALIDATED_DIGITS
from .trained import Trained, joules_until, one, run

ATTENTIONS = ("softmax", "efficient", "linear_elu", "cosformer", "kerformer")
BEST = "kerformer"
CURVES = {"eval_steps": 0.05, "dataset.validation": 1000}
STEPS = "steps to 90 %"


def part(dataset: str) -> Trained:
    arms = {name: run(f"{dataset}_kerformer_vit_small", attention=name, **CURVES) for name in ATTENTIONS}
    return Trained(
        dataset,
        one(**arms),
        equal="steps",
        budget="1.6min",
        quick=VALIDATED_DIGITS,
        data=(dataset,),
        derived=joules_until(0.9, "softmax"),
        dearer=1.2,
        beside=0.6,
    )


def statements(dataset: str, rivals: tuple[str, ...], paper: dict[str, str]):
    best, rivals = f"{dataset}/{BEST}", [f"{dataset}/{rival}" for rival in rivals]
    paper = {f"{dataset}/{name}": figure for name, figure in paper.items()}
    return against(rivals, best, "accuracy", f"{dataset}: {BEST} is more accurate than {{}}", paper)


CLAIM = Claim(
    name="kerformer_vit",
    source="Kerformer (Gan et al. 2023), section 6, Figures 6 to 8",
    says=(
        "A ViT with Kerformer's attention is more accurate on CIFAR-10 than one with softmax (by 3 points), "
        "efficient, linear_elu or cosformer attention, and converges sooner; on CIFAR-100 cosformer is the best."
    ),
    figures="figures only; +3 points over softmax on CIFAR-10",
    decided=(
        "The same small ViT, 32 pixels instead of 224, from scratch, equal steps for all. Convergence: steps until "
        "the validation split has 90 % of softmax's final accuracy."
    ),
    parts=(part("cifar10"), part("cifar100")),
    statements=(
        *statements("cifar10", ATTENTIONS[:-1], {"softmax": "+3 points"}),
        *statements("cifar100", ("softmax", "efficient", "linear_elu"), {}),
        *against(
            ["cifar100/kerformer"], "cifar100/cosformer", "accuracy", "cifar100: cosformer is more accurate than {}"
        ),
        *against(
            [f"cifar10/{name}" for name in ATTENTIONS[:-1]],
            f"cifar10/{BEST}",
            STEPS,
            "cifar10: kerformer needs fewer steps to 90 % than {}",
            more=False,
            ratio=True,
        ),
    ),
    shown={"accuracy": "accuracy", STEPS: STEPS, "joules to 90 %": "J to 90 %"},
)
