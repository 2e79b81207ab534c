"""Whether a run has the processes, and the sharded weights, that it was asked for."""

import os
import warnings

# Of torchrun, and of what mpirun starts.
LAUNCHED = ("WORLD_SIZE", "RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def warn_of_launch(world_size: int, is_sharded: bool) -> None:
    """Says what accelerate leaves out without a word.

    `accelerate launch --cpu --num_processes 2` starts one process, to which it gives an address for others. And it
    shards weights on accelerators only: on CPUs every process has all of them.
    """
    alone = world_size == 1 and not any(name in os.environ for name in LAUNCHED)
    if alone and "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ:
        warnings.warn(
            "several processes were asked for, but this is the only one: `accelerate launch --cpu` starts no others. "
            "Use `torchrun --nproc_per_node 2`, or `accelerate launch --multi_gpu --num_processes 2`, which works on "
            "CPUs too.",
            stacklevel=3,
        )
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not is_sharded:
        warnings.warn(
            "sharded weights were asked for (--use_fsdp), but accelerate does not shard on this kind of device: every "
            "process holds all of them.",
            stacklevel=3,
        )
