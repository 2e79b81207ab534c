"""What is known of a claim: one JSON, added to measurement by measurement, so that a run can stop anywhere."""

import json
import shlex
import sys
from pathlib import Path
from threading import Lock

import torch

from ...training.checkpoints import replace_file
from ...training.provenance import code_version
from ..repetitions import ExperimentError


class Record:
    """
    Args:
        file: where it is saved.
        claim: name.
        quick: whether it is of tiny data, and decides nothing.
    """

    def __init__(self, file: Path, claim: str, quick: bool = False):
        self.file, self.claim, self.quick = file, claim, quick
        self.commands: list[str] = []
        self.commits: list[str] = []
        self.budgets: dict[str, str] = {}
        self.arms: dict[str, dict] = {}
        self.verdict: dict = {}  # when all is measured
        self.lock = Lock()

    @classmethod
    def load(cls, file: Path, claim: str, quick: bool = False) -> "Record":
        """Of the file, if there is one."""
        record = cls(file, claim, quick)
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            if (found["claim"], found["quick"]) != (claim, quick):
                kind = "a quick run" if found["quick"] else "a run"
                raise ExperimentError(f"{file} is of {kind} of the claim {found['claim']}: name another file.")
            for name in ("commands", "commits", "budgets", "arms"):
                setattr(record, name, found[name])
        except FileNotFoundError:
            return record
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{file} is no record of a claim ({error!r}): name another file.") from error
        return record

    def arm(self, name: str) -> dict:
        return self.arms.setdefault(name, {"samples": {}})

    def set_budget(self, part: str, budget: str) -> None:
        """Of the trainings of a part; arms of one budget can't go on with another."""
        if self.budgets.setdefault(part, budget) != budget:
            known = self.budgets[part]
            raise ExperimentError(f"{self.file} is of runs of {known}, not of {budget}: name another file (--record).")

    def has(self, arm: str, key: int | str, metric: str | None = None) -> bool:
        """Whether an arm has a value of this seed or round (by any metric, or this one)."""
        samples = self.arms.get(arm, {}).get("samples", {})
        wanted = samples.values() if metric is None else [samples.get(metric, {})]
        return any(str(key) in values for values in wanted)

    def add(self, arm: str, key: int | str, values: dict[str, float], **facts) -> None:
        """Values by metric of one seed or round, and what else is known of the arm."""
        with self.lock:
            found = self.arm(arm)
            for metric, value in values.items():
                found["samples"].setdefault(metric, {})[str(key)] = value
            for name, fact in facts.items():
                if isinstance(fact, dict):
                    found.setdefault(name, {}).update(fact)
                else:
                    found[name] = fact
            self.save()

    def begin(self) -> None:
        """Notes the command and the commit of this process."""
        command = shlex.join(["hf-efficient", *sys.argv[1:]])
        for known, new in ((self.commands, command), (self.commits, code_version())):
            if new not in known:
                known.append(new)

    def to_json(self) -> dict:
        return {
            "claim": self.claim,
            "quick": self.quick,
            "commands": self.commands,
            "commits": self.commits,
            "threads": torch.get_num_threads(),
            "budgets": self.budgets,
            **self.verdict,
            "arms": self.arms,
        }

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.file, json.dumps(self.to_json(), indent=1) + "\n")
