"""docs/claims.md, the list of claims, and what a run prints: from the JSON files, and from nothing else."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import CommandError, told
from ...tables import columns
from . import claims
from .base import Claim, Options
from .run import FOLDER
from .verdicts import NOT_RUN, Finding, findings, mean, verdict

PAGE = Path("docs/claims.md")
PART = re.compile(r"(<!-- generated: claims -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def write_page(page: Path = PAGE, folder: Path = FOLDER) -> Path:
    """Fills the generated part of the page."""
    with told(str(page)):
        text = page.read_text(encoding="utf-8")
        page.write_text(PART.sub(lambda part: f"{part[1]}\n{markdown(folder)}\n\n{part[3]}", text), encoding="utf-8")
    return page


def read(claim: Claim, folder: Path) -> dict | None:
    """A claim's JSON; None if it was not run. Quick runs are no evidence."""
    file = folder / f"{claim.name}.json"
    if not file.is_file():
        return None
    with told(str(file), causes=(OSError, ValueError, KeyError)):
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["quick"]:
            raise CommandError(f"{file} is of a quick run, which decides nothing: remove it.")
    return record


def markdown(folder: Path = FOLDER, chosen: Sequence[Claim] | None = None) -> str:
    """A table of all verdicts, then a section for each claim."""
    chosen = claims() if chosen is None else chosen
    records = {claim.name: read(claim, folder) for claim in chosen}
    rows = []
    for claim in chosen:
        arms = (records[claim.name] or {}).get("arms", {})
        found = findings(claim, arms)
        counts = {
            word: sum(each.verdict == word for each in found) for word in dict.fromkeys(x.verdict for x in found)
        }
        shown = ", ".join(f"{count} {word}" for word, count in counts.items())
        rows.append([f"[{claim.name}](#{claim.name})", claim.source, f"**{verdict(found)}**", shown])
    head = table(["claim", "paper", "verdict", "statements"], rows)
    return "\n\n".join([head, *(section(claim, records[claim.name], folder) for claim in chosen)])


def section(claim: Claim, record: dict | None, folder: Path) -> str:
    parts = [f"### {claim.name}", f"{claim.source}. {claim.says}", f"The paper: {claim.figures}."]
    if record is None:
        command = f"hf-efficient claims run {claim.name}"
        return "\n\n".join([*parts, f"How: {claim.decided}", f"Not run. `{command}` decides it."])
    arms, found = record["arms"], findings(claim, record["arms"])
    parts += [f"How: {claim.decided}", f"**{verdict(found).capitalize()}.**", statements(claim, found)]
    if claim.shown:
        parts.append(f"<details><summary>All arms</summary>\n\n{all_arms(claim, arms)}\n\n</details>")
    trainings = dict.fromkeys(arm["command"] for arm in arms.values() if "command" in arm)
    commands = "\n".join([*record["commands"], *trainings])
    note = (
        f"<details><summary>The commands, then those of each arm</summary>\n\n```text\n{commands}\n```\n\n</details>"
    )
    keys = sorted({int(key) for arm in arms.values() for x in arm["samples"].values() for key in x})
    budgets = ", ".join(f"{name}: {x}" if name else x for name, x in record["budgets"].items())
    facts = [f"Seeds or rounds {keys[0]} to {keys[-1]}" if keys else "No samples"]
    facts += [f"budget of a training: {budgets}"] if budgets else []
    facts += [f"commit {', '.join(record['commits'])}", f"[all figures](results/claims/{claim.name}.json)"]
    return "\n\n".join([*parts, "; ".join(facts) + ".", note])


def statements(claim: Claim, found: Sequence[Finding]) -> str:
    rows = []
    for statement, finding in zip(claim.statements, found, strict=True):
        ours = "" if finding.a is None else f"{figure(finding.b)} against {figure(finding.a)}"
        rows.append([statement.says, statement.paper, ours, effect(statement, finding), finding.verdict])
    header = ["statement", "the paper", "ours", "effect, 95 % interval, bound", "verdict"]
    return table(header, rows)


def effect(statement, finding: Finding) -> str:
    if finding.verdict == NOT_RUN:
        return finding.reason
    kind, form = ("ratio", "{:.3g}") if statement.ratio else ("difference", "{:+.3g}")
    shown = f"{kind} {form.format(finding.effect)}" if finding.effect is not None else ""
    if finding.low is not None:
        shown += f" [{form.format(finding.low)}, {form.format(finding.high)}]"
    bound = f"{'above' if statement.more else 'below'} {form.format(statement.limit)}"
    reason = f"; {finding.reason}" if finding.low is None else ""
    return f"{shown}, {bound}{reason}".removeprefix(", ")


def all_arms(claim: Claim, arms: dict[str, dict]) -> str:
    """Means of what is shown, over seeds or rounds."""
    there = {m: head for m, head in claim.shown.items() if any(m in arm["samples"] for arm in arms.values())}
    rows = []
    for name, arm in arms.items():
        cells = []
        for metric, header in there.items():
            values, left_out = arm["samples"].get(metric), arm.get("left_out", {}).get(metric, "")
            cells.append(figure(mean(values) / (1e6 if header.startswith("MB") else 1)) if values else left_out)
        rows.append([f"`{name}`", *cells])
    return table(["arm", *there.values()], rows)


def figure(x: float | None) -> str:
    """Three digits or so."""
    if x is None:
        return ""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def costs(chosen: Sequence[Claim], options: Options) -> list[tuple[str, ...]]:
    """Of each claim: minutes of one core times arms times seeds, and the sum; the last row is of all."""
    rows, total = [], 0.0
    for claim in chosen:
        found = claim.cost(options)
        minutes = sum(cost.total for cost in found)
        total += minutes
        rows.append((claim.name, claim.source, " + ".join(map(str, found)), f"{minutes:.0f}"))
    return [*rows, ("all", "", "", f"{total:.0f}, {total / 60:.1f} h of one core")]


def described(claim: Claim, record: dict) -> str:
    """What a run found, in plain text."""
    found = findings(claim, record["arms"])
    rows = [(each.verdict, s.says, effect(s, each)) for s, each in zip(claim.statements, found, strict=True)]
    kept = "a quick run on tiny data, which decides nothing" if record["quick"] else "`claims report` writes the page"
    return f"{columns(rows)}\n\n{claim.name}: {verdict(found)} ({kept})"
