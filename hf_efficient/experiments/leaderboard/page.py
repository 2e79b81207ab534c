"""The leaderboard as a table for docs/leaderboard.md and as docs/leaderboard/index.html, one file with nothing else.

Beside the mechanisms stand the systems of docs/results/recipes: other models, whose budgets their rows state.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from ...attention import get_attention
from ...attention.registry import is_linear
from ...tables import columns
from ..repetitions import ExperimentError
from .plot import scatter
from .rows import FOLDER, Row, family, is_higher_better, load_rows

RECIPES = FOLDER.parent / "recipes"
TEMPLATE = Path(__file__).with_name("template.html")
PAGE, INDEX = "leaderboard.md", "leaderboard/index.html"
PART = re.compile(r"(<!-- generated: leaderboard -->\n)(.*?)(<!-- end -->)", re.DOTALL)
TITLES = {"cifar10": "CIFAR-10, a small ViT", "enwik8": "enwik8, a small language model"}
NOTHING = "Nothing measured yet: `hf-efficient leaderboard` does it."


@dataclass(frozen=True)
class Entry:
    """A row of the table, of a mechanism or of a system."""

    name: str
    task: str
    metric: str
    score: float
    seeds: int
    steps: int
    seconds: float
    joules: float | None
    budget: str
    command: str
    links: dict[str, str]  # what -> address, from docs
    method: str = ""
    peak_memory: int | None = None
    parameters: int | None = None
    commit: str = ""
    family: str = "system"
    causal: bool | None = None
    linear: bool | None = None

    @property
    def is_system(self) -> bool:
        return self.family == "system"

    @property
    def shown(self) -> str:
        return f"{100 * self.score:.1f} %" if is_higher_better(self.metric) else f"{self.score:.3f}"


def of_row(row: Row, docs: Path) -> Entry:
    cls = get_attention(row.mechanism)
    links = {"JSON": f"results/leaderboard/{row.task}_{row.mechanism}.json"}
    links["code"] = f"../hf_efficient/attention/{row.mechanism}.py"
    if (docs.parent / f"model_cards/{row.config}.md").is_file():
        links["card"] = f"../model_cards/{row.config}.md"
    return Entry(
        row.mechanism, row.task, row.metric, row.score, len(row.scores), row.steps, row.seconds, row.joules,
        row.budget, row.command, links, row.pace.method, row.peak_memory, row.parameters, row.commit,
        family(row.mechanism), cls.supports_causal, is_linear(cls.cost),
    )  # fmt: skip


def systems(docs: Path) -> list[Entry]:
    """Of the recipes, by their data; each says how long it was given."""
    found = []
    for file in sorted((docs / RECIPES.relative_to(FOLDER.parents[1])).glob("*.json")):
        task, record = file.stem, json.loads(file.read_text(encoding="utf-8"))
        for name, arm in record["arms"].items():
            if arm["scores"] and arm["config_sha256"]:  # else its config is another by now
                config = arm["settings"][0]
                words = " ".join(
                    ["hf-efficient train", *arm["settings"], "--max_steps", str(arm["steps"]), "--seed 0"]
                )
                links = {"JSON": f"results/recipes/{file.name}"}
                if (docs.parent / f"model_cards/{config}.md").is_file():
                    links["card"] = f"../model_cards/{config}.md"
                mean = sum(arm["scores"].values()) / len(arm["scores"])
                threads = arm["pace"]["threads"]
                found.append(Entry(
                    name, task, record["metric"], mean, len(arm["scores"]), arm["steps"], arm["seconds"],
                    arm["joules"], f"{record['budget']} of {threads} core", words, links, arm["pace"]["method"],
                ))  # fmt: skip
    return found


def entries(docs: Path, folder: Path) -> list[Entry]:
    """Mechanisms and systems, by task, the best first."""
    rows = [of_row(row, docs) for row in load_rows(folder)]
    rows += systems(docs)
    return sorted(rows, key=lambda x: (x.task, -x.score if is_higher_better(x.metric) else x.score))


def front(found: Sequence[Entry]) -> set[str]:
    """Names of mechanisms that none is as good as in score, joules and memory alike, and better than in one.

    Joules and memory that differ by less than about 2 % are the same.
    """

    def criteria(x: Entry) -> tuple[float, ...]:
        score = -x.score if is_higher_better(x.metric) else x.score
        return score, *(round(50 * math.log(cost)) if cost else 0 for cost in (x.joules, x.peak_memory))

    points = {x.name: criteria(x) for x in found if not x.is_system}
    return {
        name
        for name, own in points.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in points.values())
    }


def markdown(docs: Path = Path("docs"), folder: Path = FOLDER) -> str:
    """A table for each task."""
    found, parts = entries(docs, folder), []
    for task in dict.fromkeys(entry.task for entry in found):
        rows, own = [], [entry for entry in found if entry.task == task]
        best = front(own)
        for x in own:
            name = f"*`{x.name}`*" if x.is_system else f"[`{x.name}`]({x.links['JSON']})"
            memory = "–" if x.peak_memory is None else f"{x.peak_memory / 1e6:,.0f}"
            cells = [name, x.shown, f"{x.seeds}", x.budget, f"{x.steps:,}", number(x.joules), memory]
            rows.append([*cells, number(x.parameters), "yes" if x.name in best else ""])
        metric = own[0].metric.removeprefix("test_").replace("_", " ")
        header = ["", metric, "seeds", "time", "steps", "J", "peak memory, MB", "parameters", "Pareto front"]
        lines = [header, ["---"] * len(header), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        commits = ", ".join(sorted({x.commit for x in own if x.commit}))
        commits = f"Commit {commits}. " if commits else ""
        parts.append(f"### {title(task)}\n\n{table}\n\n{commits}Joules: {own[0].method or 'not measured'}.")
    return "\n\n".join(parts) or NOTHING


def title(task: str) -> str:
    return TITLES.get(task, task.replace("_", " "))


def number(x: float | None) -> str:
    return "–" if x is None else f"{x:,.0f}"


def html(docs: Path = Path("docs"), folder: Path = FOLDER) -> str:
    """The whole page."""
    found = entries(docs, folder)
    sections = [section(task, [x for x in found if x.task == task]) for task in dict.fromkeys(x.task for x in found)]
    families = sorted({entry.family for entry in found})
    empty = '<p class="empty">Nothing measured yet: <code>hf-efficient leaderboard</code> does it.</p>'
    page = Template(TEMPLATE.read_text(encoding="utf-8"))
    return page.substitute(filters=filters(families) if found else "", sections="\n".join(sections) or empty)


def filters(families: Sequence[str]) -> str:
    yes_no = '<option value="">any</option><option>yes</option><option>no</option>'
    kinds = "".join(f"<option>{escape(name)}</option>" for name in families)
    return (
        '<div class="filters">'
        f'<label>causal <select data-filter="causal">{yes_no}</select></label>'
        f'<label>linear <select data-filter="linear">{yes_no}</select></label>'
        f'<label>family <select data-filter="family"><option value="">any</option>{kinds}</select></label>'
        "</div>"
    )


def section(task: str, found: Sequence[Entry]) -> str:
    metric, best = found[0].metric.removeprefix("test_").replace("_", " "), front(found)
    unit = " (%)" if is_higher_better(found[0].metric) else " (lower is better)"
    header = ["", metric, "steps", "J", "peak memory, MB", "parameters", "time", "source"]
    heads = "".join(f'<th scope="col"><button type="button">{escape(text or "name")}</button></th>' for text in header)
    body = "\n".join(table_row(entry, entry.name in best) for entry in found)
    mechanisms = [entry for entry in found if not entry.is_system]
    note = "Models, with the time that they were given."
    if mechanisms:
        note = (
            "Green: on the Pareto front of score, joules and memory, among the mechanisms. In italics: other models, "
        )
        note += "with the time that they were given."
    plots = [
        scatter(mechanisms, best, "joules", "joules of training, kJ", 1e3, metric + unit),
        scatter(mechanisms, best, "peak_memory", "peak memory, MB", 1e6, metric + unit),
    ]
    methods = sorted({entry.method for entry in found if entry.method})
    return (
        f'<section>\n<h2>{escape(title(task))}</h2>\n<p class="note">{note}</p>\n'
        f"<details><summary>how joules are known</summary><p class='note'>{escape('; '.join(methods))}</p></details>\n"
        f'<div class="plots">{"".join(filter(None, plots))}</div>\n'
        f'<div class="scroll"><table>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n</section>"
    )


def table_row(x: Entry, is_best: bool) -> str:
    kinds = " ".join(name for name, has in (("best", is_best), ("system", x.is_system)) if has)
    data = {"causal": yes_no(x.causal), "linear": yes_no(x.linear), "family": x.family}
    attributes = "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())
    links = " · ".join(f'<a href="../{escape(address)}">{escape(what)}</a>' for what, address in x.links.items())
    how = f"<details><summary>command</summary><pre>{escape(x.command)}</pre>"
    how += f"commit <code>{escape(x.commit[:12] + x.commit[40:])}</code>" if x.commit else ""
    seeds = f" <small>{x.seeds} seeds</small>" if x.seeds > 1 else ""
    cells = [
        (x.name, f"<code>{escape(short(x))}</code><br><small>{escape(x.family)}</small>"),
        (x.score, x.shown + seeds),
        (x.steps, number(x.steps)),
        (x.joules, number(x.joules)),
        (x.peak_memory, "–" if x.peak_memory is None else f"{x.peak_memory / 1e6:,.0f}"),
        (x.parameters, number(x.parameters)),
        (x.seconds, escape(x.budget)),
        ("", f"{links} {how}</details>"),
    ]
    shown = "".join(f'<td data-value="{"" if v is None else escape(str(v))}">{text}</td>' for v, text in cells)
    return f'<tr id="{x.task}-{escape(x.name)}" class="{kinds}"{attributes}>{shown}</tr>'


def short(x: Entry) -> str:
    """A system without what all of its task's configs are called."""
    return x.name.removeprefix(f"{x.task}_").removesuffix("_small") if x.is_system else x.name


def yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def write_pages(docs: Path, folder: Path = FOLDER) -> list[Path]:
    """The generated part of docs/leaderboard.md, and the page."""
    page, index = docs / PAGE, docs / INDEX
    if not page.is_file():
        raise ExperimentError(f"{page} is not there: call this in the top folder of a clone.")
    text, table = page.read_text(encoding="utf-8"), markdown(docs, folder)
    page.write_text(PART.sub(lambda part: f"{part[1]}\n{table}\n\n{part[3]}", text), encoding="utf-8")
    index.parent.mkdir(exist_ok=True)
    index.write_text(html(docs, folder), encoding="utf-8")
    return [page, index]


def print_table(rows: Sequence[Row]) -> None:
    found = [row for row in rows if row.scores]
    cells = [(r.task, r.mechanism, r.metric, f"{r.score:.4f}", f"{r.steps:,}", number(r.joules)) for r in found]
    print(columns([("task", "mechanism", "metric", "score", "steps", "J"), *cells]))
