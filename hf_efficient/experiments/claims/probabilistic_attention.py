"""HuggingGreen, research question 1: does a probabilistic view of attention save energy?"""

from .base import Claim, Statement
from .tiny import VALIDATED_DIGITS
from .trained import Trained, one, run

CONFIG = "cifar10_hugginggreen_vit_small"
NAMES = ("softmax", "probabilistic", "gaussian_mixture")
POINT = 0.01  # of micro-F1, that may be lost "without degrading performance"
ARMS = one(**{name: run(CONFIG, attention=name, heuristic="none", patch_schedule=None) for name in NAMES})


def statements(name: str) -> list[Statement]:
    equal, shown = f"equal_steps/{name}", name.replace("_", " ")
    return [
        Statement(
            f"{shown} takes less energy, equal steps", "joules", "equal_steps/softmax", equal, False, ratio=True
        ),
        Statement(
            f"{shown} loses less than a point of F1, equal steps",
            "micro_f1",
            "equal_steps/softmax",
            equal,
            True,
            bound=-POINT,
        ),
        Statement(
            f"{shown} loses less than a point of F1, equal energy",
            "micro_f1",
            "equal_energy/softmax",
            f"equal_energy/{name}",
            True,
            bound=-POINT,
        ),
    ]


CLAIM = Claim(
    name="probabilistic_attention",
    source="HuggingGreen (Limone & Iannotti), research question 1 and section V.A",
    says=(
        "With the same configuration, a ViT with probabilistic attention (keys and values as the components of a "
        "mixture) uses less energy in training than one with softmax attention, and its micro-F1 is no worse."
    ),
    figures='no figures: "Experiment not yet performed"',
    decided=(
        "A small ViT instead of 1.8 billion parameters, all patches. Energy is that of each run, as the paper takes "
        "it. By its definition probabilistic attention with its default prior is softmax attention, and "
        "gaussian_mixture has two keys for each token: neither has less to compute."
    ),
    parts=(
        Trained(
            "equal_steps",
            ARMS,
            "steps",
            "2.5min",
            quick=VALIDATED_DIGITS,
            data=("cifar10",),
            reads_energy=True,
            dearer=1.3,
        ),
        Trained("equal_energy", ARMS, "energy", "2.5min", quick=VALIDATED_DIGITS, data=("cifar10",)),
    ),
    statements=tuple(one for name in NAMES[1:] for one in statements(name)),
    shown={"micro_f1": "micro-F1", "joules": "J of training"},
)
