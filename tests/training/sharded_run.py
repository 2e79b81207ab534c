"""As `hf-efficient train <yaml>`; fails if a process has weights as a whole while it trains."""

import sys

from torch.distributed.tensor import DTensor

from hf_efficient.training.tasks import train
from hf_efficient.training.trainer import EfficientTrainer

step = EfficientTrainer.training_step


def watched_step(trainer, *args, **kwargs):
    assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    return step(trainer, *args, **kwargs)


if __name__ == "__main__":
    EfficientTrainer.training_step = watched_step
    train(sys.argv[1])
