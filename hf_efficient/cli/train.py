"""Train what a YAML file describes: of your own, or by the name of one that comes with the package.

    hf-efficient train cifar10_kerformer_vit_small --learning_rate 1e-3
    hf-efficient train my_run.yaml --output_dir results/second --seed 2
    hf-efficient train first second third       # each starts from what the one before has learned
    torchrun --nproc_per_node 2 -m hf_efficient train cifar10_kerformer_vit_small

`task:` in the file says what is trained, and every key of the file can be overridden. Killed at any moment and started
again by the same command, it goes on from its last checkpoint. The folder that it leaves is a model for
from_pretrained() and `hf-efficient predict`.

    hf-efficient list configs                                   what comes with the package
    hf-efficient train cifar10_kerformer_vit_small --help       all keys of a run, with what they are set to
"""

import sys
from collections.abc import Sequence
from itertools import takewhile

from ..extras import require


def main(argv: list[str], tasks: Sequence[str] = ()) -> int:
    """
    Args:
        tasks: those that are allowed, by default all.
    """
    configs = list(takewhile(lambda word: not word.startswith("-"), argv))
    overrides = argv[len(configs) :]
    wants_help = "-h" in overrides or "--help" in overrides
    if wants_help and not configs:
        print(__doc__.strip())
        return 0
    if not configs:
        print("hf-efficient train: which run? Give a YAML file or a name; --help explains.", file=sys.stderr)
        return 2
    require("train")
    from ..training.tasks import train
    from ..training.tasks.stages import train_in_stages

    if len(configs) > 1 and not wants_help:
        train_in_stages(configs, overrides)
    else:
        train(configs[0], overrides, tasks)
    return 0
