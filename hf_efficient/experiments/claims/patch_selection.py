"""HuggingGreen, research question 2: does dropping patches by a heuristic make training converge sooner?"""

from .base import Claim, against
from .tiny import COMMON
from .trained import Trained, joules_until, one, run

HEURISTICS = ("contrast", "variance", "entropy")
ARMS = ("none", *HEURISTICS, "random")
SHARES = (25, 40, 60, 80)  # % of the patches
JOULES = "joules to 90 %"
# Images of 32 pixels in 64 patches; heads of 16, since 64 features make no 12 heads.
SMALL = {
    **{"model.image_size": 32, "patch_size": 4, "head_dim": 16, "per_device_train_batch_size": 128},
    **{"dataset.validation": 1000, "per_device_eval_batch_size": 500, "eval_strategy": "steps", "eval_steps": 0.05},
}
QUICK = (
    *("--dataset", "digits", "--dataset.limit", "80", "--dataset.validation", "20", "--model.image_size", "8"),
    *("--patch_size", "2", "--hidden_size", "16", "--head_dim", "4", "--num_hidden_layers", "1"),
    *("--intermediate_size", "16", *COMMON),
)


def part(heads: int, budget: str, beside: float) -> Trained:
    config = f"cifar10_hugginggreen_vit_rq2_{heads}"
    arms = {name: run(config, heuristic=name, top_k=45, **SMALL) for name in ARMS}
    return trained(f"{heads}_heads", arms, budget, beside)


def trained(name: str, arms: dict, budget: str, beside: float) -> Trained:
    derived = joules_until(0.9, "none")
    quick = (*QUICK, "--top_k", "11")
    return Trained(
        name, one(**arms), "steps", budget, quick=quick, data=("cifar10",), derived=derived, dearer=0.9, beside=beside
    )


def shares() -> Trained:
    arms = {"none": run("cifar10_hugginggreen_vit_rq2_4", heuristic="none", top_k=64, **SMALL)}
    for share in SHARES:
        top_k = round(64 * share / 100)
        arms[f"{share} %"] = run("cifar10_hugginggreen_vit_rq2_4", heuristic="variance", top_k=top_k, **SMALL)
    return trained("top_k", arms, "0.8min", 0.4)


CLAIM = Claim(
    name="patch_selection",
    source="HuggingGreen (Limone & Iannotti), research question 2, Table II",
    says=(
        "Dropping 30 % of the patches by contrast, variance or entropy, in half of the batches and ever fewer, lets a "
        "ViT of 4, 8 or 12 heads converge sooner than with all patches."
    ),
    figures='no figures: "Experiment not yet performed"',
    decided=(
        "Table II at 32 pixels. Sooner: joules, at the pace rehearsed, until the validation split has 90 % of the "
        "accuracy that the model with all patches ends with. random is the control: dropping without looking; the "
        "table also has 25 to 80 % of the patches, by variance."
    ),
    parts=(part(4, "0.8min", 0.4), part(8, "1.2min", 0.6), part(12, "1.6min", 0.8), shares()),
    statements=tuple(
        statement
        for heads in (4, 8, 12)
        for name in HEURISTICS
        for statement in against(
            [f"{heads}_heads/none"],
            f"{heads}_heads/{name}",
            JOULES,
            f"{heads} heads: {name} takes fewer joules to 90 % than all patches",
            more=False,
            ratio=True,
        )
    ),
    shown={"accuracy": "accuracy", JOULES: "J to 90 %", "steps to 90 %": "steps to 90 %"},
)
