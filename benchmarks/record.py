"""What every JSON says about the run that made it."""

import datetime
import os
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.memory import keeps_freed_memory
from benchmarks.peers import PACKAGES
from hf_efficient import __version__
from hf_efficient.training.provenance import commit

ROOT = Path(__file__).parents[1]


def run_record(name: str, argv: list[str]) -> dict:
    """What the figures of a benchmark depend on: command, commit, date, versions, machine, threads."""
    return {
        "command": " ".join(["python", "-m", f"benchmarks.{name}", *map(shlex.quote, argv)]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": "processor" if torch.get_num_threads() == 1 else "wall",  # as in timing.py
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hf_efficient": __version__,
        **{package: installed(package) for package in ("transformers", *PACKAGES)},
        "allocator": "keeps freed memory" if keeps_freed_memory() else "default",
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def counted(threads: int) -> str:
    return f"{threads} thread{'s' * (threads != 1)}"


def describe_run(record: dict) -> str:
    """Machine, versions, date and commit in a line."""
    threads = "1 thread (processor time)" if record.get("clock") == "processor" else counted(record["threads"])
    line = "{cpu} ({vectors}), {0}, torch {torch}, allocator: {allocator}, {date}, commit {commit}"
    return line.format(threads, **record)
