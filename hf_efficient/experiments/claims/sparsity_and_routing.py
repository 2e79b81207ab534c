"""HuggingGreen, abstract: a sparsity regulariser, and attention only for important feature maps."""

from .base import Claim, Statement
from .tiny import VALIDATED_DIGITS
from .trained import Trained, one, run

CONFIG = "cifar10_hugginggreen_vit_small"
CHANGES = {
    "entropy": {"attention_sparsity": "entropy"},
    "hoyer": {"attention_sparsity": "hoyer"},
    "heads": {"routing": "heads"},
    "tokens": {"routing": "tokens"},
}
SAYS = {
    "entropy": "the regulariser of rows' entropy",
    "hoyer": "the regulariser of rows' Hoyer measure",
    "heads": "routing to half of the heads",
    "tokens": "routing of half of the tokens",
}
ARMS = {name: run(CONFIG, heuristic="none", patch_schedule=None, **x) for name, x in {"plain": {}, **CHANGES}.items()}

CLAIM = Claim(
    name="sparsity_and_routing",
    source="HuggingGreen (Limone & Iannotti), abstract",
    says=(
        "A regulariser that makes attention sparser, and attention that is active for important feature maps only, "
        "reduce the energy of training, at comparable or better accuracy."
    ),
    figures='no figures: "Experiment not yet performed"',
    decided=(
        "The paper defines neither; docs/mechanisms.md says what stands for them here. Equal steps, energy of each "
        "run; comparable: less than a point of accuracy is lost."
    ),
    parts=(
        Trained(
            "",
            one(**ARMS),
            "steps",
            "2.5min",
            quick=(*VALIDATED_DIGITS, "--num_attention_heads", "2"),
            data=("cifar10",),
            reads_energy=True,
        ),
    ),
    statements=tuple(
        statement
        for name, says in SAYS.items()
        for statement in (
            Statement(f"{says} takes less energy", "joules", "plain", name, more=False, ratio=True),
            Statement(f"{says} loses less than a point", "accuracy", "plain", name, more=True, bound=-0.01),
        )
    ),
    shown={"accuracy": "accuracy", "joules": "J of training"},
)
