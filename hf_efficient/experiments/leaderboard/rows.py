"""One JSON for each mechanism and task: what it was given, what it reached, and by which command.

A task is a config; a row is that config with another mechanism. All rows of a task get the same time: they are
rehearsed in turns, which fixes their steps, and then trained one after the other, each with its seeds. A row without a
score is rehearsed only. Stopped anywhere, the same command goes on.
"""

import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from transformers import AutoConfig

from ...attention import get_attention, list_attentions
from ...attention.kernel_attention import KernelAttention
from ...training.budget import Budget
from ...training.checkpoints import replace_file
from ...training.configs import find_config
from ...training.run_file import read_file
from ..budget_record import Pace, curve
from ..budget_record import score as read_score
from ..claims.tiny import DIGITS, PYDOCS
from ..claims.trained import read_results, train_here
from ..equal_budgets import rehearse, rehearse_beside, usable_cores
from ..repetitions import ExperimentError, Repetition, Variant, finish, is_finished, plan

FOLDER = Path("docs/results/leaderboard")
YARDSTICK = "softmax"


@dataclass(frozen=True)
class Task:
    """
    Args:
        config: of the run.
        settings: what is set in all rows.
        quick: what is set besides to make them tiny.
    """

    config: str
    settings: tuple[str, ...]
    quick: tuple[str, ...]

    def model(self) -> dict:
        """The section of the config, with the settings."""
        section = dict(read_file(str(find_config(self.config)))["model"])
        pairs = zip(self.settings[::2], self.settings[1::2], strict=True)
        return section | {key[2:]: json.loads(value) for key, value in pairs if key[2:] in ("use_cls_token",)}

    def mechanisms(self) -> list[str]:
        """All that fit."""
        config = AutoConfig.for_model(**{**self.model(), "attention": YARDSTICK, "attention_options": {}})
        return [name for name in list_attentions() if not config.misfit(name)]


TASKS = {
    "cifar10": Task(
        "cifar10_kerformer_vit_small", ("--use_cls_token", "false"), (*DIGITS, "--dataset.validation", "20")
    ),
    "enwik8": Task("enwik8_gpt_small", (), (*PYDOCS, "--model.segment_length", "16")),
}


@dataclass
class Row:
    """
    Args:
        task, mechanism: together its name.
        config, config_sha256: of the run, and of its content.
        budget: of time, for each training.
        command: of seed 0.
        pace, steps: fixed by the rehearsal.
        metric: that it is judged by.
        scores, curves: by seed.
        peak_memory, parameters, commit: of the last training.
    """

    task: str
    mechanism: str
    config: str
    config_sha256: str
    budget: str
    command: str
    pace: Pace
    steps: int
    metric: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list] = field(default_factory=dict)
    peak_memory: int | None = None
    parameters: int | None = None
    commit: str = ""

    @classmethod
    def load(cls, file: Path) -> "Row":
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            row = cls(**{each.name: found[each.name] for each in fields(cls)})
            row.pace = Pace(**row.pace)
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{file} is no row of the leaderboard ({error!r}): remove it.") from error
        return row

    @property
    def seconds(self) -> float:
        return self.steps * self.pace.seconds_per_step

    @property
    def joules(self) -> float | None:
        return None if self.pace.watts is None else self.seconds * self.pace.watts

    @property
    def score(self) -> float | None:
        return sum(self.scores.values()) / len(self.scores) if self.scores else None

    def file(self, folder: Path) -> Path:
        return folder / f"{self.task}_{self.mechanism}.json"

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cls = get_attention(self.mechanism)
        facts = {"causal": cls.supports_causal, "cost": cls.cost, "paper": cls.paper, "family": family(self.mechanism)}
        known = {**asdict(self), **facts, "seconds": self.seconds, "joules": self.joules, "score": self.score}
        replace_file(self.file(folder), json.dumps(known, indent=1) + "\n")


def family(name: str) -> str:
    """What kind of mechanism it is, in a word or two."""
    cls = get_attention(name)
    if issubclass(cls, KernelAttention):
        return "kernel"
    if not cls.per_head:
        return "mixing"
    if cls.needs_grid or "w" in cls.cost or "b(" in cls.cost or "C" in cls.cost or "M²" in cls.cost:
        return "sparse"
    return "full" if "N²" in cls.cost else "low rank"


def load_rows(folder: Path = FOLDER) -> list[Row]:
    """All rows that have a score, by task; the best first."""
    rows = [row for file in sorted(folder.glob("*.json")) if (row := Row.load(file)).scores]
    return sorted(rows, key=lambda row: (row.task, -row.score if is_higher_better(row.metric) else row.score))


def is_higher_better(metric: str) -> bool:
    return not metric.endswith(("loss", "perplexity", "bits_per_byte"))


def fill(
    tasks: Sequence[str] = (),
    *,
    mechanisms: Sequence[str] = (),
    budget: str = "8min",
    seeds: int = 1,
    jobs: int = 1,
    rows: Path = FOLDER,
    output_dir: Path = Path("runs/leaderboard"),
    quick: bool = False,
) -> list[Row]:
    """Rehearses and trains what is missing; the rows of these tasks.

    Args:
        tasks, mechanisms: by default all.
        budget: of each training.
        jobs: trainings at a time, which share the machine's cores.
        rows: the folder of the JSON files.
        output_dir: of the runs.
        quick: tiny models on data that come along, in a folder that goes away.
    """
    for task in tasks:
        if task not in TASKS:
            raise ExperimentError(f"there is no task {task!r}; there are {', '.join(TASKS)}.")
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return fill_tasks(tasks or TASKS, mechanisms, "0.1s", 1, 1, Path(folder), Path(folder) / "runs", quick)
    return fill_tasks(tasks or TASKS, mechanisms, budget, seeds, jobs, rows, output_dir, quick)


def fill_tasks(tasks, mechanisms, budget, seeds, jobs, folder, output, quick) -> list[Row]:
    found = []
    for name in tasks:
        fitting = TASKS[name].mechanisms()
        if unknown := sorted(set(mechanisms) - set(list_attentions())):
            raise ExperimentError(f"there is no mechanism {unknown[0]!r}.")
        chosen = [each for each in fitting if not mechanisms or each in mechanisms]
        found += fill_task(name, chosen, budget, range(seeds), jobs, folder, output / name, quick)
    return found


def fill_task(name, mechanisms, budget, seeds, jobs, folder, output, quick) -> list[Row]:
    table = rehearsed(name, mechanisms, budget, folder, output, quick)
    left = [(row, seed) for seed in seeds for row in table if str(seed) not in row.scores]
    threads = max(1, usable_cores() // jobs)

    def train(pair: tuple[Row, int]) -> None:
        row, seed = pair
        repetition = repetition_of(row, seed, output, quick)
        if quick:
            train_here(repetition)
        elif not is_finished(repetition):
            print(f"{name}, {repetition.label}: running", flush=True)
            finish(repetition, {**os.environ, "OMP_NUM_THREADS": str(threads)})
        row.metric, metrics = read_score(repetition)
        row.scores[str(seed)] = metrics[row.metric]
        row.curves[str(seed)] = curve(repetition, row.metric)
        results = read_results(repetition)
        row.peak_memory, row.parameters, row.commit = (results[x] for x in ("peak_memory", "parameters", "commit"))
        row.save(folder)
        print(f"{name}, {repetition.label}: {row.metric} {row.scores[str(seed)]:.4f}", flush=True)

    if jobs == 1:
        for pair in left:
            train(pair)
    else:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(train, left))
    return table


def settings_of(task: str, mechanism: str, quick: bool) -> list[str]:
    own = ["--attention", mechanism, "--attention_options", "{}", *TASKS[task].settings]
    return [*own, "--disable_tqdm", "true", "--energy.cpu_watts", "10", *TASKS[task].quick] if quick else own


def repetition_of(row: Row, seed: int, output: Path, quick: bool) -> Repetition:
    words = (*settings_of(row.task, row.mechanism, quick), "--max_steps", str(row.steps))
    return plan([Variant(row.mechanism, find_config(row.config), words)], [seed], output)[0]


def rehearsed(name: str, mechanisms, budget: str, folder: Path, output: Path, quick: bool) -> list[Row]:
    """A row for each, new ones with their steps."""
    config = TASKS[name].config
    sha256 = hashlib.sha256(find_config(config).read_bytes()).hexdigest()
    known = {file.stem: Row.load(file) for file in folder.glob(f"{name}_*.json")}
    for row in known.values():
        if row.budget != budget:
            raise ExperimentError(f"{row.file(folder)} is of {row.budget}, not of {budget}: give another --rows.")
        if (row.config, row.config_sha256) != (config, sha256):
            raise ExperimentError(f"{row.file(folder)} is of another config, or of another content: remove it.")
    new = [each for each in mechanisms if f"{name}_{each}" not in known]
    if new:
        words = {each: (config, settings_of(name, each, quick)) for each in new}
        brief = {"rounds": 1, "seconds": 0.02} if quick else {}
        if known:
            first = known.get(f"{name}_{YARDSTICK}") or next(iter(known.values()))
            yardstick = (config, settings_of(name, first.mechanism, quick))
            paces = rehearse_beside(first.pace, yardstick, words, output / "rehearsal", **brief)
        else:
            paces = rehearse(words, output / "rehearsal", **brief)
        for each, pace in paces.items():
            steps = pace.steps(Budget.parse(budget))
            command = ["hf-efficient", "train", config, *words[each][1], "--max_steps", str(steps), "--seed", "0"]
            known[f"{name}_{each}"] = Row(name, each, config, sha256, budget, shlex.join(command), pace, steps)
            known[f"{name}_{each}"].save(folder)
    return [known[f"{name}_{each}"] for each in mechanisms]
