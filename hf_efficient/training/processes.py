"""Whether a run has the processes that it was asked for."""

import os
import warnings

# Of torchrun, and of what mpirun starts.
LAUNCHED = ("WORLD_SIZE", "RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def warn_of_missing_processes(world_size: int) -> None:
    """`accelerate launch --cpu --num_processes 2` starts one process, which finds the address of others."""
    if world_size > 1 or "MASTER_ADDR" not in os.environ or "ACCELERATE_USE_CPU" not in os.environ:
        return
    if not any(name in os.environ for name in LAUNCHED):
        warnings.warn(
            "several processes were asked for, but this is the only one: `accelerate launch --cpu` starts no others. "
            "Use `torchrun --nproc_per_node 2`, or `accelerate launch --multi_gpu --num_processes 2`, which works on "
            "CPUs too.",
            stacklevel=3,
        )
