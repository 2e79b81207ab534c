"""A run that was asked for several processes, or sharded weights, and has not got them says so."""

import os
import warnings

import pytest
from accelerate.commands.launch import launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from hf_efficient.training.processes import LAUNCHED, warn_of_launch

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
    with pytest.warns(UserWarning, match="accelerate does not shard on this kind of device"):
        warn_of_launch(2, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_launch(2, True)
