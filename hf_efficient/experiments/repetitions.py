"""The paper's experiment (HuggingGreen, section V.A): the same runs over and over, interleaved, and their energies.

Each repetition is a process of its own, `hf-efficient train <config> --output_dir <folder> --seed <seed>`, that leaves
`results.json` and `energy.json` in its folder. A repetition that finished is not run again; one that was interrupted
starts anew, since energy that went into lost work would make it incomparable.
"""

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..energy.report import FILE, EnergyReport
from ..errors import CommandError
from ..training.configs import FOLDER, find_config

RESULTS = "results.json"
LAST_LINES = 15


class ExperimentError(CommandError):
    """An experiment can't go on; the message says why."""


@dataclass(frozen=True)
class Variant:
    """One of the runs that are compared.

    Args:
        name: what it is called.
        config: its YAML.
        overrides: further arguments of its command.
    """

    name: str
    config: Path
    overrides: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """From `[name=]config[,key=value ...]`."""
        first, *pairs = text.split(",")
        name, _, config = first.rpartition("=")
        overrides = []
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise ExperimentError(f"{pair!r} in {text!r} must be key=value.")
            overrides += [f"--{key.strip()}", value.strip()]
        path = find_config(config)
        return cls(name or path.stem, path, tuple(overrides))

    @property
    def words(self) -> str:
        """What it is: its config, and what is other than there."""
        pairs = zip(self.overrides[::2], self.overrides[1::2], strict=True)
        changes = [f"{key.removeprefix('--').replace('_', ' ')} {value}" for key, value in pairs]
        return ", ".join([self.config.stem, *changes])


@dataclass(frozen=True)
class Repetition:
    """One process to run."""

    variant: Variant
    seed: int
    folder: Path
    command: tuple[str, ...]

    @property
    def marker(self) -> Path:
        """What it was and whether it finished: beside its folder, which belongs to the script."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def label(self) -> str:
        return f"{self.variant.name}, seed {self.seed}"

    def fingerprint(self) -> dict:
        """What makes it the same experiment: its command and the content of its config."""
        content = hashlib.sha256(self.variant.config.read_bytes()).hexdigest()
        return {"command": list(self.command[1:]), "config_sha256": content}


@dataclass(frozen=True)
class Outcome:
    """Of one repetition; energies in joules."""

    variant: str
    seed: int
    train: float
    evaluation: float
    cpu: float
    gpu: float
    ram: float
    net: float | None
    seconds: float
    accuracy: float | None
    f1_micro: float | None

    @property
    def joules_per_f1(self) -> float | None:
        """The paper's trade-off: training energy over micro-F1."""
        return self.train / self.f1_micro if self.f1_micro else None


def plan(
    variants: Sequence[Variant],
    seeds: Sequence[int],
    output: Path,
    script: Path | None = None,
    common: Sequence[str] = (),
    python: str | None = None,
) -> list[Repetition]:
    """A B A B ...: changes of the machine over time affect all variants alike.

    Args:
        script: what runs a config instead of `hf-efficient train`.
        common: further arguments of all commands.
    """
    program = ("-m", "hf_efficient", "train") if script is None else (str(script),)
    names = [variant.name for variant in variants]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ExperimentError(
            f"two runs are called {', '.join(sorted(repeated))}: name them, such as full=config.yaml."
        )
    if len(set(seeds)) < len(seeds):
        raise ExperimentError(f"seeds {list(seeds)} must differ.")
    repetitions = []
    for seed in seeds:
        for variant in variants:
            folder = output / variant.name / f"seed_{seed}"
            where = ("--output_dir", str(folder), "--seed", str(seed))
            config = variant.config.stem if variant.config.parent == FOLDER else str(variant.config)
            command = (python or sys.executable, *program, config, *where, *common, *variant.overrides)
            repetitions.append(Repetition(variant, seed, folder, command))
    return repetitions


def is_finished(repetition: Repetition) -> bool:
    """Whether it has run to its end; if another experiment's run is in its place, that is an error."""
    marker = repetition.marker
    if not marker.is_file():
        if repetition.folder.exists() and any(repetition.folder.iterdir()):
            raise ExperimentError(f"{repetition.folder} has other files in it: choose another --output_dir.")
        return False
    try:
        recorded = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        return False
    if recorded.get("finished") and recorded.get("fingerprint") != repetition.fingerprint():
        raise ExperimentError(
            f"{repetition.folder} has a run of another command or config: choose another --output_dir, or delete it."
        )
    return bool(recorded.get("finished"))


def run(repetition: Repetition) -> None:
    """Runs it from its beginning; what it prints goes to its log."""
    if repetition.folder.exists():  # `is_finished` has made sure that it is ours
        shutil.rmtree(repetition.folder)
    execute(repetition)
    read(repetition)  # what can't be read did not finish
    _mark(repetition, finished=True)


def finish(repetition: Repetition, environment: dict[str, str]) -> None:
    """Runs it, from its last checkpoint on if it has any."""
    execute(repetition, environment)
    _mark(repetition, finished=True)


def execute(repetition: Repetition, environment: dict[str, str] | None = None) -> None:
    """Runs its command; what fails is an error with the end of its log."""
    repetition.folder.parent.mkdir(parents=True, exist_ok=True)
    _mark(repetition, finished=False)
    with repetition.log.open("w", encoding="utf-8") as log:
        options = {"stdout": log, "stderr": subprocess.STDOUT, "env": environment, "check": False}
        code = subprocess.run(repetition.command, **options).returncode
    if code:
        lines = repetition.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise ExperimentError(
            f"{repetition.label} failed with exit code {code}:\n  {shlex.join(repetition.command)}\n  "
            + "\n  ".join(lines)
            + f"\nThe whole output is in {repetition.log}. The same command continues from here."
        )


def _mark(repetition: Repetition, finished: bool) -> None:
    record = {"finished": finished, "fingerprint": repetition.fingerprint()}
    repetition.marker.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def run_all(repetitions: Sequence[Repetition], tell: Callable[[int, Repetition, bool], None]) -> Iterator[Outcome]:
    """The outcomes, in order; `tell(index, repetition, was_there)` before each."""
    finished = [is_finished(repetition) for repetition in repetitions]  # errors first, before hours of work
    for index, repetition in enumerate(repetitions):
        tell(index, repetition, finished[index])
        if not finished[index]:
            run(repetition)
        yield read(repetition)


def read_report(repetition: Repetition) -> EnergyReport:
    try:
        return EnergyReport.load(repetition.folder / FILE)
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{repetition.label} left no readable {FILE}: {error}") from error


def read(repetition: Repetition) -> Outcome:
    report = read_report(repetition)
    if not report.finished:
        raise ExperimentError(f"{repetition.label} did not finish training, according to {FILE}.")
    if not report.components:
        why = report.alarms.get("failure", "it has energy.enabled=false?")
        raise ExperimentError(f"{repetition.label} measured no energy: {why}")
    try:
        results = json.loads((repetition.folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{repetition.label} left no readable {RESULTS}: {error}") from error
    accuracy, f1_micro = find_metric(results, "accuracy"), find_metric(results, "f1_micro")
    parts = {name: report.joules("train", component=name) for name in ("cpu", "gpu", "ram")}
    return Outcome(
        variant=repetition.variant.name,
        seed=repetition.seed,
        train=report.joules("train"),
        evaluation=report.joules("eval"),
        net=report.net_joules("train"),
        seconds=report.seconds("train"),
        accuracy=accuracy,
        f1_micro=accuracy if f1_micro is None else f1_micro,  # with one label each, the two are the same number
        **parts,
    )


def find_metric(results: dict, name: str) -> float | None:
    """A metric by its name, with or without the Trainer's `eval_` before it, wherever in the results it stands."""
    for key in (name, f"eval_{name}"):
        if isinstance(results.get(key), (int, float)):
            return float(results[key])
    for part in results.values():
        if isinstance(part, dict) and (value := find_metric(part, name)) is not None:
            return value
    return None


def to_record(outcomes: Sequence[Outcome]) -> list[dict]:
    return [{**asdict(outcome), "joules_per_f1": outcome.joules_per_f1} for outcome in outcomes]
