"""A run that was asked for several processes, or sharded weights, and has not got them says so."""

import os
import warnings
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

import hf_efficient
from hf_efficient.training.errors import RunError
from hf_efficient.training.processes import LAUNCHED, blocks_of, shard, warn_of_launch

COMMON = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "train.py")


@pytest.fixture
def launched(monkeypatch):
    """Puts the process into the environment that `accelerate launch` makes."""
    for name in (*LAUNCHED, "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_FSDP"):
        monkeypatch.delenv(name, raising=False)

    def launch(*words):
        arguments = launch_command_parser().parse_args([*words, *COMMON])
        arguments.use_cpu, arguments.gpu_ids = arguments.cpu, "all"
        if arguments.cpu:
            environment = prepare_simple_launcher_cmd_env(arguments)[1]
        else:
            environment = prepare_multi_gpu_env(arguments)
        monkeypatch.setattr(os, "environ", environment)

    return launch


def test_one_process_instead_of_two(launched):
    launched("--cpu", "--num_processes", "2")
    with pytest.warns(UserWarning, match="several processes were asked for, but this is the only one"):
        warn_of_launch(1, False)


@pytest.mark.parametrize("words", [("--cpu", "--num_processes", "1"), ("--multi_gpu", "--num_processes", "2")])
def test_what_was_asked_for(launched, words):
    launched(*words)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_launch(int(words[-1]), False)


def test_weights_that_are_not_sharded(launched):
    launched("--use_fsdp", "--fsdp_version", "2", "--num_processes", "2")
    with pytest.warns(UserWarning, match="there is one process, which holds all of them"):
        warn_of_launch(1, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_launch(2, True)


def test_only_the_second_version_shards():
    plugin = SimpleNamespace(fsdp_version=1)
    accelerator = SimpleNamespace(state=SimpleNamespace(distributed_type="MULTI_GPU", fsdp_plugin=plugin))
    with pytest.raises(RunError, match="add --fsdp_version 2"):
        shard(accelerator, None, torch.nn.Linear(1, 1))


@pytest.mark.parametrize("family", ["HuggingGreenViT", "KerformerText", "MobileViTv2", "CompressivePerformer"])
def test_blocks_hold_no_input_embedding(family):
    """accelerate shards that by itself."""
    with torch.device("meta"):
        model = getattr(hf_efficient, f"{family}Model")(getattr(hf_efficient, f"{family}Config")())
    blocks = blocks_of(model)
    assert blocks and set(blocks) <= set(model._no_split_modules)
    for part in model.modules():
        if type(part).__name__ in blocks:
            assert all(x is not model.get_input_embeddings() for x in part.modules())
