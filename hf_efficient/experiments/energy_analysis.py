"""The experiment's report: what was compared, how the energies are known, what may be said, and what may not."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..energy.carbon import Grid
from ..energy.markdown import amount
from ..energy.options import JOULES_PER_KWH
from ..energy.report import EnergyReport
from .repetitions import Outcome, Repetition
from .statistics import SIGNIFICANCE, Comparison, Summary, compare_all, summarize, verdict

ENERGIES, TRADE_OFF = "energies.png", "energy_and_f1.png"


@dataclass(frozen=True)
class Goal:
    """The goal of a comparison: the energy to save, and the score that may be lost for it."""

    energy: float = 0.75  # share of the first's training energy
    points: float = 0.5  # of accuracy, in per cent


@dataclass(frozen=True)
class Analysis:
    """
    Args:
        outcomes: of all repetitions.
        energies, seconds, scores, trade_offs: variant -> Summary; scores are micro-F1 in per cent; the last two lack
            variants whose runs report no micro-F1.
        differences, score_differences: of every pair, in energy (ratios) and in micro-F1 (points).
    """

    outcomes: tuple[Outcome, ...]
    energies: dict[str, Summary]
    seconds: dict[str, Summary]
    scores: dict[str, Summary]
    trade_offs: dict[str, Summary]
    differences: tuple[Comparison, ...]
    score_differences: tuple[Comparison, ...]

    @property
    def variants(self) -> list[str]:
        return list(self.energies)


def analyse(outcomes: Sequence[Outcome]) -> Analysis:
    variants = list(dict.fromkeys(outcome.variant for outcome in outcomes))
    energies = {name: _sample(outcomes, "train", name) for name in variants}
    scores = _complete({name: _sample(outcomes, "f1_micro", name, 100) for name in variants}, energies)
    trade_offs = _complete({name: _sample(outcomes, "joules_per_f1", name) for name in variants}, energies)
    return Analysis(
        tuple(outcomes),
        {name: summarize(list(sample.values())) for name, sample in energies.items()},
        {name: summarize(list(_sample(outcomes, "seconds", name).values())) for name in variants},
        {name: summarize(list(sample.values())) for name, sample in scores.items()},
        {name: summarize(list(sample.values())) for name, sample in trade_offs.items()},
        tuple(compare_all(energies)),
        tuple(compare_all(scores, ratio=False)),
    )


def read_analysis(record: dict) -> Analysis:
    """From what report.json holds."""
    names = [field.name for field in fields(Outcome)]
    return analyse([Outcome(**{name: row[name] for name in names}) for row in record["outcomes"]])


def _sample(outcomes: Sequence[Outcome], what: str, variant: str, factor: float = 1) -> dict[int, float]:
    """Seed -> value of one variant, without what is missing."""
    chosen = [outcome for outcome in outcomes if outcome.variant == variant]
    return {outcome.seed: factor * value for outcome in chosen if (value := getattr(outcome, what)) is not None}


def _complete(samples: dict[str, dict], all_of: dict[str, dict]) -> dict[str, dict]:
    return {name: sample for name, sample in samples.items() if len(sample) == len(all_of[name])}


def conclude(analysis: Analysis) -> list[str]:
    """In plain words, each run against the first."""
    first = analysis.variants[0]
    if len(analysis.variants) == 1:
        return [f"{first} was measured alone: there is nothing to compare it with."]
    lines = []
    for name in analysis.variants[1:]:
        energy = next(pair for pair in analysis.differences if (pair.a, pair.b) == (first, name))
        lines.append(f"**{name}** against {first}: {verdict(energy)}.")
        score = next((pair for pair in analysis.score_differences if (pair.a, pair.b) == (first, name)), None)
        if score is not None:
            lines[-1] += f" Micro-F1: {_describe_points(score)}."
    return lines


def _describe_points(pair: Comparison) -> str:
    if pair.p is None:
        return f"{pair.effect:+.2f} points, {pair.reason}"
    interval = f"{pair.effect:+.2f} points [{pair.low:+.2f}, {pair.high:+.2f}]"
    p = pair.p if pair.adjusted is None else pair.adjusted
    return f"{interval}, {'significant' if pair.significant else 'within the noise'} (p = {p:.2g})"


def judge(analysis: Analysis, goal: Goal) -> list[str]:
    """Whether each run reaches the goal against the first: yes, no, or unknown."""
    first, lines = analysis.variants[0], []
    for name in analysis.variants[1:]:
        energy = next(pair for pair in analysis.differences if (pair.a, pair.b) == (first, name))
        score = next((pair for pair in analysis.score_differences if (pair.a, pair.b) == (first, name)), None)
        if score is None:
            lines.append(f"**{name}**: not to be told, as its runs report no micro-F1.")
            continue
        reached = energy.effect <= goal.energy and score.effect >= -goal.points
        sure = energy.p is not None and energy.high <= goal.energy and score.low >= -goal.points
        answer = "yes" if reached and sure else "yes, but not surely" if reached else "no"
        if energy.p is None or score.p is None:
            answer = "too few repetitions to tell"
        lines.append(f"**{name}**: {answer}. {energy.effect:.3f} of the energy, {score.effect:+.2f} points.")
    return lines


def write_markdown(
    analysis: Analysis,
    repetitions: Sequence[Repetition],
    reports: Sequence[EnergyReport],
    grids: Sequence[Grid],
    goal: Goal,
    plots: bool = True,
) -> str:
    """The whole report; `plots` says whether its pictures are there."""
    seeds = list(dict.fromkeys(repetition.seed for repetition in repetitions))
    seed_list = ", ".join(map(str, seeds))
    sections = [
        "# Energy of repeated runs",
        f"{len(analysis.variants)} runs, {len(seeds)} repetitions of each (seeds {seed_list}), interleaved.",
        "## What may be said",
        _bullets(conclude(analysis)),
    ]
    if len(analysis.variants) > 1:
        sections += [
            f"At most {goal.energy:g} of the first's training energy, for at most {goal.points:g} points of micro-F1:",
            _bullets(judge(analysis, goal)),
        ]
    if caveat := _caveat(reports):
        sections.append(caveat)
    sections += ["## How the energies are known", _bullets(_provenance(reports))]
    sections += ["## Energy", _energy_table(analysis)]
    if plots:
        sections += [f"![energies]({ENERGIES})", f"![energy and micro-F1]({TRADE_OFF})"]
    sections += ["## Where it goes", _component_table(analysis)]
    if analysis.differences:
        sections += ["## Differences", _difference_table(analysis)]
    sections += ["## Carbon", _carbon_table(analysis, grids)]
    sections += ["## All repetitions", _outcome_table(analysis)]
    sections += ["## Commands", _commands(repetitions)]
    return "\n\n".join(sections) + "\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] + ['---:'] * (len(head) - 1))} |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _interval(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    if summary.low is None:
        return f"{amount(summary.centre)} (no interval)"
    confidence = "" if summary.confidence == 0.95 else f" ({summary.confidence:.0%})"
    return f"{amount(summary.centre)} [{amount(summary.low)}, {amount(summary.high)}]{confidence}"


def _provenance(reports: Sequence[EnergyReport]) -> list[str]:
    """What all runs say, each thing once; an alarm with how many of the runs raise it."""
    lines = list(dict.fromkeys(f"{part}, scope: {part.scope}" for report in reports for part in report.components))
    lines += dict.fromkeys(
        f"read by {report.tracker} every {report.interval:g} s on {report.hardware}" for report in reports
    )
    alarms = {name: alarm for report in reports for name, alarm in report.alarms.items()}
    for name, alarm in alarms.items():
        raised = sum(name in report.alarms for report in reports)
        lines.append(f"**Alarm** in {raised} of {len(reports)} repetitions: {alarm}")
    return lines


def _caveat(reports: Sequence[EnergyReport]) -> str:
    """Limits of the measurement that statistics can't remove."""
    methods = {part.name: part.method for report in reports for part in report.components}
    guessed = sorted(name.upper() for name, method in methods.items() if method != "measured")
    if not guessed:
        return ""
    return (
        f"Intervals and p values tell of the noise alone. No counter measured {' and '.join(guessed)} here: what is "
        "wrong with the estimate is wrong in every repetition, and no number of them shows it."
    )


def _energy_table(analysis: Analysis) -> str:
    head = ["run", "n", "Shapiro-Wilk p", "reported", "training J", "s", "micro-F1 %", "J per F1"]
    rows = []
    for name, energy in analysis.energies.items():
        normality = "–" if energy.shapiro is None else f"{energy.shapiro:.3g}"
        cells = [analysis.seconds[name], analysis.scores.get(name), analysis.trade_offs.get(name)]
        rows.append([name, str(energy.size), normality, energy.statistic, _interval(energy), *map(_interval, cells)])
    note = (
        f"Training energy, gross, with 95 % intervals: the mean where Shapiro-Wilk does not reject normality at "
        f"{SIGNIFICANCE}, else the median. J per F1 is the paper's trade-off, energy over micro-F1 (as a fraction), "
        "which is the accuracy where each image has one label."
    )
    return f"{_table(head, rows)}\n\n{note}"


def _component_table(analysis: Analysis) -> str:
    rows = []
    for name in analysis.variants:
        chosen = [outcome for outcome in analysis.outcomes if outcome.variant == name]
        values = [
            [getattr(outcome, part) for outcome in chosen] for part in ("cpu", "gpu", "ram", "evaluation", "net")
        ]
        rows.append([name, *(amount(None if None in part else sum(part) / len(part)) for part in values)])
    head = ["run", "CPU J", "GPU J", "RAM J", "evaluation J", "training net of idle J"]
    return f"{_table(head, rows)}\n\nMeans. Evaluation comes on top of training."


def _difference_table(analysis: Analysis) -> str:
    rows = []
    for pair in analysis.differences:
        ratio = f"{pair.effect:.3f}" + ("" if pair.low is None else f" [{pair.low:.3f}, {pair.high:.3f}]")
        ps = ["–" if p is None else f"{p:.2g}" for p in (pair.p, pair.adjusted)]
        rows.append([f"{pair.b} / {pair.a}", ratio, pair.test, *ps, verdict(pair)])
    return _table(["training energy", "ratio", "test", "p", "p (Holm)", "verdict"], rows)


def _carbon_table(analysis: Analysis, grids: Sequence[Grid]) -> str:
    head = ["electricity of", "g CO2e/kWh", *analysis.variants]
    rows = []
    for grid in grids:
        if grid.grams_per_kwh is not None:
            kwhs = (energy.centre / JOULES_PER_KWH for energy in analysis.energies.values())
            rows.append([grid.name, amount(grid.grams_per_kwh), *(amount(kwh * grid.grams_per_kwh) for kwh in kwhs)])
    sources = "; ".join(dict.fromkeys(grid.source for grid in grids))
    return f"{_table(head, rows)}\n\nGrams of CO2e of one training: carbon intensity times energy ({sources})."


def _outcome_table(analysis: Analysis) -> str:
    head = ["run", "seed", "training J", "evaluation J", "s", "accuracy %", "micro-F1 %"]
    rows = []
    for outcome in analysis.outcomes:
        scores = [None if score is None else 100 * score for score in (outcome.accuracy, outcome.f1_micro)]
        values = [outcome.train, outcome.evaluation, outcome.seconds, *scores]
        rows.append([outcome.variant, str(outcome.seed), *map(amount, values)])
    return _table(head, rows)


def _commands(repetitions: Sequence[Repetition]) -> str:
    first = {repetition.variant.name: repetition for repetition in reversed(repetitions)}
    lines = [shlex.join(("python", *repetition.command[1:])) for repetition in reversed(first.values())]
    return "```\n" + "\n".join(lines) + "\n```"


def save(folder: Path, text: str) -> Path:
    path = folder / "report.md"
    path.write_text(text, encoding="utf-8")
    return path
