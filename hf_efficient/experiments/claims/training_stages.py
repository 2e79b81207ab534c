"""HuggingGreen, research question 3: can other ways of training save energy and keep the accuracy?"""

from .base import Claim, Statement
from .tiny import DIGITS
from .trained import Trained, run

MASKED = "tiny_imagenet_hugginggreen_vit_rq3_masked_small"
CONTRASTIVE = "cifar10_hugginggreen_vit_rq3_contrastive_small"
FINE_TUNING = "cifar10_hugginggreen_vit_rq3_finetune_small"
WHOLE = {"freeze_backbone": False, "learning_rate": 0.001, "weight_decay": 0.05}
FEW_CLASSES = ("--per_device_train_batch_size", "20", "--images_per_class", "2")


def masked(share: float):
    return run(MASKED, share)


def contrastive(share: float):
    return run(CONTRASTIVE, share, quick=FEW_CLASSES)


ARMS = {
    "scratch": (run(FINE_TUNING, **WHOLE),),
    "masked_frozen": (masked(0.6), run(FINE_TUNING, 0.4)),
    "masked": (masked(0.6), run(FINE_TUNING, 0.4, **WHOLE)),
    "contrastive_frozen": (masked(0.4), contrastive(0.3), run(FINE_TUNING, 0.3)),
    "contrastive": (masked(0.4), contrastive(0.3), run(FINE_TUNING, 0.3, **WHOLE)),
}
SAYS = {
    "masked_frozen": "pre-training and a new head are better than training from scratch",
    "masked": "the same, with nothing frozen",
    "contrastive_frozen": "pre-training, contrast and a new head are better than training from scratch",
    "contrastive": "the same, with nothing frozen",
}

CLAIM = Claim(
    name="training_stages",
    source="HuggingGreen (Limone & Iannotti), research question 3, section V.C",
    says=(
        "Pre-training on masked patches and fine-tuning of the head, with or without hard-negative contrastive "
        "learning in between, needs less energy for the same accuracy than training from scratch."
    ),
    figures='no figures: "Experiment not yet performed"',
    decided=(
        "CIFAR-10 accuracy at equal energy of all stages together: 60 + 40 %, or 40 + 30 + 30 %. The encoder is "
        "frozen in fine-tuning, as the paper says, or not."
    ),
    parts=(
        Trained(
            "",
            ARMS,
            "energy",
            "2.5min",
            quick=(*DIGITS, "--top_k", "2"),
            data=("cifar10", "tiny_imagenet"),
            beside=1.0,
        ),
    ),
    statements=(
        *(Statement(says, "accuracy", "scratch", name, more=True) for name, says in SAYS.items()),
        Statement("contrast adds to pre-training, head only", "accuracy", "masked_frozen", "contrastive_frozen", True),
        Statement("contrast adds to pre-training, nothing frozen", "accuracy", "masked", "contrastive", True),
    ),
    shown={"accuracy": "accuracy"},
)
