"""Benchmark two processes against one: python -m benchmarks.processes --help."""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.command_line import Progress, benchmark_parser, positive, prepare
from benchmarks.record import run_record
from benchmarks.reports import write_files
from benchmarks.tables import markdown_table, significant, text_table
from benchmarks.timing import Ratio, ratio
from hf_efficient import KerformerViTConfig, KerformerViTForImageClassification

DESCRIPTION = """

A training step of KerformerViT, forward, backward and AdamW, of one process with one thread, and of two processes
(gloo) with half of the batch each: replicated (DDP) and sharded (FSDP2). They take turns in the same processes:

  time     of the step, over that of one process
  CPU      seconds of both processes, over those of one: what communication costs
  bytes    that both send in a step, in bytes per parameter; they are counted on the loopback device of a network
           namespace of its own, and only as root
"""
KINDS = ("replicated", "sharded")
# Bytes per parameter, in all: docs/scaling.md. Sharded it would be 12, but gloo reduces where others scatter.
ARITHMETIC = {"replicated": 8, "sharded": 16}
HEADER = ["two processes", "time", "CPU", "bytes per parameter", "by arithmetic"]
PRIVATE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = benchmark_parser("processes", DESCRIPTION, "results/training")
    parser.add_argument("--rounds", type=positive, default=7, help="default: 7")
    parser.add_argument("--steps", type=positive, default=5, help="of each contender, in each round (default: 5)")
    parser.add_argument("--batch", type=positive, default=64, help="of all processes (default: 64)")
    parser.add_argument("--port", type=positive, default=29561, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    if "RANK" in os.environ:
        measure(arguments)
        return 0
    prepare(arguments)
    found = run_both(argv, arguments.port)
    results = {"environment": run_record("processes", argv), **found}
    table = HEADER, rows(found)
    print(found["what"], "", text_table(*table), sep="\n")
    write_files("processes", results, markdown_table(*table), arguments.output)
    return 0


def run_both(argv: list[str], port: int) -> dict:
    """What the first of two processes found."""
    can_count = os.geteuid() == 0 and subprocess.run([*PRIVATE, "true"], capture_output=True).returncode == 0
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COUNTS_BYTES": str(int(can_count))}
    common |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "benchmarks.processes", *argv]
    both = 'RANK=1 LOCAL_RANK=1 "$@" & RANK=0 LOCAL_RANK=0 "$@"; code=$?; wait; exit $code'
    shell = [*(PRIVATE if can_count else []), "sh", "-c", both, "sh", *command]
    return json.loads(subprocess.run(shell, env=common, stdout=subprocess.PIPE, text=True, check=True).stdout)


def rows(found: dict) -> list[list[str]]:
    shown = []
    for kind in KINDS:
        time_taken, cpu = (Ratio(*found[kind][name]) for name in ("time", "cpu"))
        sent = found[kind]["bytes_per_parameter"]
        shown.append(
            [
                kind,
                *(f"{x.median:.2f} [{x.low:.2f} {x.high:.2f}]" for x in (time_taken, cpu)),
                "not counted" if sent is None else significant(sent),
                str(ARITHMETIC[kind]),
            ]
        )
    return shown


class Contender:
    """A model, its optimizer and its batch."""

    def __init__(self, model: nn.Module, rows: int):
        generator = torch.Generator().manual_seed(distributed.get_rank())
        self.batch = {
            "pixel_values": torch.randn(rows, 3, 32, 32, generator=generator),
            "labels": torch.randint(10, (rows,), generator=generator),
        }
        self.model, self.optimizer = model.train(), torch.optim.AdamW(model.parameters(), lr=1e-6)

    def take(self, steps: int) -> None:
        for _ in range(steps):
            self.model(**self.batch).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def measure(arguments: argparse.Namespace) -> None:
    """In each process; the first prints what was found."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = KerformerViTForImageClassification(KerformerViTConfig.from_preset("tiny_patch4_32", num_labels=10))
    parameters, half, is_first = model.num_parameters(), arguments.batch // 2, distributed.get_rank() == 0
    contenders = {
        "one": Contender(copy.deepcopy(model), arguments.batch) if is_first else None,
        "replicated": Contender(DistributedDataParallel(copy.deepcopy(model)), half),
        "sharded": Contender(shard(copy.deepcopy(model)), half),
    }
    taken = {name: [] for name in contenders}
    progress = Progress(0)
    for turn in range(-1, arguments.rounds):  # the first warms up
        for name, contender in contenders.items():
            found = costs(contender, arguments.steps)
            taken[name] += [found] if turn >= 0 else []
        if is_first:
            progress.say(f"round {turn + 1} of {arguments.rounds}")
    one = torch.stack(taken["one"])
    results = {"what": f"kerformer_vit, {parameters / 1e6:.1f} M parameters, batch {arguments.batch}, 1 thread each"}
    for kind in KINDS:
        both = torch.stack(taken[kind])
        sent = both[:, 2].median().item() / parameters / arguments.steps
        results[kind] = {
            "time": ratio(both[:, 0], one[:, 0]),
            "cpu": ratio(both[:, 1], one[:, 1]),
            "bytes_per_parameter": sent if os.environ["COUNTS_BYTES"] == "1" else None,
        }
    results["seconds_per_step_of_one"] = one[:, 0].median().item() / arguments.steps
    if is_first:
        print(json.dumps(results))
    distributed.destroy_process_group()


def costs(contender: Contender | None, steps: int) -> Tensor:
    """Seconds, CPU seconds of both processes, and bytes sent by both."""
    distributed.barrier()
    sent, start, cpu = bytes_sent(), time.perf_counter(), time.process_time()
    if contender is not None:
        contender.take(steps)
    cpu = torch.tensor(time.process_time() - cpu, dtype=torch.float64)
    distributed.barrier()
    seconds = time.perf_counter() - start
    sent = bytes_sent() - sent
    distributed.all_reduce(cpu)
    return torch.tensor([seconds, cpu.item(), sent], dtype=torch.float64)


def bytes_sent() -> int:
    """Over the loopback device, headers included."""
    lines = Path("/proc/net/dev").read_text().splitlines() if Path("/proc/net/dev").exists() else []
    return next((int(line.split()[9]) for line in lines if line.strip().startswith("lo:")), 0)


def shard(model: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module)
    return fully_shard(model)


if __name__ == "__main__":
    raise SystemExit(main())
