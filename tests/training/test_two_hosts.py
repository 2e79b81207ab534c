"""Two hosts: network namespaces with a cable between them, where the machine allows it. Nothing leaves them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

RUN = {
    "task": "image-classification",
    "dataset": {"name": "digits", "limit": 100, "evaluation_limit": 20},
    "model": {
        **{"model_type": "kerformer_vit", "image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "intermediate_size": 16},
    },
    "training": {"max_steps": 4, "learning_rate": 0.01, "adam_epsilon": 1e-3},
    "energy": {"enabled": False},
}


def ip(*words) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Namespace (and device) and address of each."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root, and the command ip (apt-get install iproute2)")
    found = {f"hfe{letter}{os.getpid()}": f"10.231.77.{number}" for number, letter in enumerate("ab", 1)}
    made = []
    try:
        for name in found:
            ip("netns", "add", name)
            made.append(name)
        first, second = found
        ip("link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second)
        for name, address in found.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            for device in ("lo", name):
                ip("-n", name, "link", "set", device, "up")
        yield found
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.slow
def test_two_hosts_equal_one_process(hosts, preloaded, tmp_path):
    def write(name: str, batch: int) -> str:
        training = {**RUN["training"], "output_dir": str(tmp_path / name), "per_device_train_batch_size": batch}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**RUN, "training": training}))
        return str(tmp_path / f"{name}.yaml")

    done = preloaded.run("-m", "hf_efficient", "train", write("one", 16))
    assert done.returncode == 0, done.stderr[-3000:]
    first, processes = next(iter(hosts.values())), []
    for name, address in hosts.items():
        options = (
            "--nnodes",
            "2",
            "--nproc_per_node",
            "1",
            "--rdzv_backend",
            "c10d",
            "--rdzv_endpoint",
            f"{first}:29500",
        )
        own = ("--rdzv_conf", f"is_host={int(address == first)}", "--local_addr", address)
        command = [sys.executable, "-m", "torch.distributed.run", *options, *own, "-m", "hf_efficient", "train"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": name, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "env": environment}
        processes.append(subprocess.Popen(["ip", "netns", "exec", name, *command, write("two", 8)], **pipes))
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error[-3000:]
    assert json.loads((tmp_path / "two" / "results.json").read_text())["processes"] == 2
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-4, msg=name)
