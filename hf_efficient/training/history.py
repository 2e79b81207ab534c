"""history.csv: what a run logged, without a tracker; `curves` draws it.

It has a row per log, with whatever it measured; how long things took, and what energy, is left out (it is
in results.json and energy.json), so that a run that was interrupted and resumed ends with the very file of one that
wasn't.
"""

import csv
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainerCallback

from .checkpoints import replace_file

logger = logging.getLogger(__name__)
FILE = "history.csv"
FIRST = ("step", "epoch")
COSTS = re.compile(r"runtime|_per_second|preparation_time|total_flos|^energy_")


class HistoryCallback(TrainerCallback):
    """Writes history.csv as training goes on."""

    def __init__(self):
        self.columns: list[str] = []
        self.running = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.running = state.is_world_process_zero
        if self.running:  # what was logged after the checkpoint that training goes on from is to be logged again
            with never_costs_the_run(FILE):
                self.rewrite(args, state)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not self.running or not (row := measured(state.log_history[-1])):
            return
        columns, self.columns = self.columns, []  # if it can't be written now, all is written the next time
        with never_costs_the_run(FILE):
            if set(row) <= set(columns):
                with (Path(args.output_dir) / FILE).open("a", encoding="utf-8", newline="") as file:
                    csv.DictWriter(file, columns, lineterminator="\n").writerow(row)
                self.columns = columns
            else:
                self.rewrite(args, state)

    def on_train_end(self, args, state, control, **kwargs):
        self.running = False  # later evaluations are results, not history

    def rewrite(self, args, state) -> None:
        rows = history(state.log_history)
        columns, text = columns_of(rows), io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_file(Path(args.output_dir) / FILE, text.getvalue())
        self.columns = columns


@contextmanager
def never_costs_the_run(file: str | Path) -> Iterator[None]:
    """A file that only tells what happened: if there is no room for it, that is a warning."""
    try:
        yield
    except OSError as error:
        logger.warning("%s can't be written: %s. Training goes on without it.", file, error)


def history(logs: list[dict]) -> list[dict]:
    """The rows of history.csv"""
    return [row for log in logs if (row := measured(log))]


def measured(log: dict) -> dict:
    """One log without times and energy; empty if nothing is left, or if it is the summary at the end."""
    if "train_loss" in log:
        return {}
    names = sorted(
        log, key=lambda name: (name not in FIRST, name.startswith("eval_"), not name.endswith("loss"), name)
    )
    row = {name: log[name] for name in names if not COSTS.search(name) and not isinstance(log[name], dict | list)}
    return row if set(row) - set(FIRST) else {}


def columns_of(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys([*FIRST, *(name for row in rows for name in row)]))
