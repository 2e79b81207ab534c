"""Whether a run has the processes, and the sharded weights, that it was asked for."""

import os
import warnings

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, disable_fsdp_ram_efficient_loading
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers.modeling_utils import PreTrainedModel

from .errors import RunError

# Of torchrun, and of what mpirun starts.
LAUNCHED = ("WORLD_SIZE", "RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def warn_of_launch(world_size: int, is_sharded: bool) -> None:
    """Says what accelerate leaves out without a word.

    `accelerate launch --cpu --num_processes 2` starts one process, to which it gives an address for others. And of one
    process there is nothing to shard.
    """
    alone = world_size == 1 and not any(name in os.environ for name in LAUNCHED)
    if alone and "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ:
        warnings.warn(
            "several processes were asked for, but this is the only one: `accelerate launch --cpu` starts no others. "
            "Use `torchrun --nproc_per_node 2`, or `accelerate launch --multi_gpu --num_processes 2`, which works on "
            "CPUs too.",
            stacklevel=3,
        )
    if asks_for_shards() and not is_sharded:
        warnings.warn(
            "sharded weights were asked for (--use_fsdp), but there is one process, which holds all of them.",
            stacklevel=3,
        )


def asks_for_shards() -> bool:
    """Whether `accelerate launch --use_fsdp` started this process."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def build_whole_models() -> None:
    """Every process of a sharded run reads the weights itself, before it keeps its shard of them.

    By default accelerate has the first one read them and hand them out; but it can't hand out buffers, as those of
    random features or BatchNorm are.
    """
    if asks_for_shards():
        disable_fsdp_ram_efficient_loading()


def shard(accelerator: Accelerator, options: dict | None, model: PreTrainedModel) -> bool:
    """Whether the accelerator shards weights (FSDP2); on CPUs it does from now on, if it was asked to.

    accelerate asks for the device's kind and shards on accelerators only, though torch shards on CPUs as well. Weights
    are gathered block by block, unless other classes were named, and saved whole, as `from_pretrained` reads them.

    Args:
        options: those of `--fsdp` in the training arguments; None where it was not given.
    """
    state = accelerator.state
    if state.distributed_type == DistributedType.MULTI_CPU and (options is not None or asks_for_shards()):
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**(options or {}))
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    plugin = getattr(state, "fsdp_plugin", None)
    if plugin is None:
        return False
    if plugin.fsdp_version != 2:
        raise RunError(f"--fsdp_version {plugin.fsdp_version} can't be used: add --fsdp_version 2.")
    plugin.state_dict_config = plugin.optim_state_dict_config = None  # or it would keep those of shards
    plugin.set_state_dict_type("FULL_STATE_DICT")
    if not os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP"):
        plugin.auto_wrap_policy, plugin.transformer_cls_names_to_wrap = transformer_auto_wrap_policy, blocks_of(model)
    return True


def blocks_of(model: PreTrainedModel) -> list[str]:
    """The classes that are not to be split, but for what holds the input embedding: accelerate shards that by itself,
    and would do it twice."""
    parts = [part for part in model.modules() if type(part).__name__ in (model._no_split_modules or ())]
    embedding = model.get_input_embeddings()
    return sorted({type(part).__name__ for part in parts if all(x is not embedding for x in part.modules())})
