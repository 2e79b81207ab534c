"""Running a claim: part by part, from where it was stopped, into one JSON."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from . import claim as find_claim
from .base import Options
from .record import Record
from .verdicts import to_json

FOLDER = Path("docs/results/claims")


def run_claim(name: str, options: Options, file: Path | None = None) -> dict:
    """Measures what is missing, and returns what the JSON says.

    Args:
        file: the JSON to go on with: docs/results/claims/NAME.json, or of quick runs one in a folder that goes away.
    """
    claim = find_claim(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # minutes of claims are those of one core
    try:
        if not options.quick:
            return measure(claim, options, file or FOLDER / f"{name}.json")
        with tempfile.TemporaryDirectory() as folder:
            options = replace(options, folder=Path(folder))
            return measure(claim, options, file or Path(folder) / f"{name}.json")
    finally:
        torch.set_num_threads(threads)


def measure(claim, options: Options, file: Path) -> dict:
    record = Record.load(file, claim.name, options.quick)
    record.begin()
    for part in claim.parts:
        part.run(record, options)
    record.verdict = to_json(claim, record.arms)
    record.save()
    return record.to_json()
