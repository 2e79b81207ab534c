"""Fills the generated parts of README.md and docs/*.md: make docs, or make docs ARGS=--check.

Such a part stands between `<!-- generated: NAME -->` and `<!-- end -->`. What is written there comes from the registry
of mechanisms, the JSON files in docs/results and the cards in model_cards, so that no figure is copied by hand. The
leaderboard's page docs/leaderboard/index.html is made as a whole.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import docs_headline, docs_leaderboard, docs_mechanisms, docs_results, docs_tables
from benchmarks.record import ROOT
from hf_efficient.attention import list_attentions
from hf_efficient.experiments.claims import report, run
from hf_efficient.experiments.leaderboard import page as leaderboard
from hf_efficient.experiments.leaderboard import rows

TABLES = {
    "headline": docs_headline.headline,
    "mechanisms": docs_mechanisms.mechanisms,
    "mechanism_options": docs_mechanisms.mechanism_options,
    "trained_models": docs_results.trained_models,
    "comparisons": docs_results.comparisons,
    "energy_comparison": docs_results.energy_comparison,
    "converted_attention": docs_results.converted_attention,
    "missed_floors": docs_tables.missed_floors,
    "attention_floors": docs_tables.attention_floors,
    "attention_benchmark": docs_tables.attention_benchmark,
    "model_speeds": docs_tables.model_speeds,
    "language_model_speeds": docs_tables.language_model_speeds,
    "text_speeds": docs_tables.text_speeds,
    "training_speed": docs_tables.training_speed,
    "data_speed": docs_tables.data_speed,
    "processes": docs_tables.processes,
    "claims": lambda: report.markdown(ROOT / run.FOLDER),
    "leaderboard": lambda: leaderboard.markdown(ROOT / "docs", ROOT / rows.FOLDER),
}
PART = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def fill(text: str, new_mechanisms: bool = True) -> str:
    """A page with its generated parts as they should be.

    Args:
        new_mechanisms: whether mechanisms that the page does not name yet get a row.
    """

    def filled(part: re.Match) -> str:
        start, name, old, end = part.groups()
        made = TABLES[name]()
        return f"{start}\n{made if new_mechanisms else without_new_mechanisms(made, old)}\n\n{end}"

    return PART.sub(filled, text)


def without_new_mechanisms(made: str, old: str) -> str:
    """Leaves out rows of mechanisms that the old part has no row of: adding a file must not make a page wrong."""
    new = [f"`{name}`" for name in list_attentions() if f"`{name}`" not in old]
    return "\n".join(line for line in made.split("\n") if not any(name in first_cell(line) for name in new))


def first_cell(line: str) -> str:
    return line.split("|")[1] if line.startswith("|") else ""


def leaderboard_page() -> str:
    return leaderboard.html(ROOT / "docs", ROOT / rows.FOLDER)


def differences(page: Path) -> Iterator[str]:
    """The lines of a page that are not as they should be, as in a diff."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    wanted = leaderboard_page() if page.name == "index.html" else fill(text, new_mechanisms=False)
    for line in difflib.unified_diff(text.splitlines(), wanted.splitlines(), n=0, lineterm=""):
        if line[:3] not in ("---", "+++") and line[:2] != "@@":
            yield line


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.docs_pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="say what is out of date, and change nothing")
    check, stale = parser.parse_args(argv).check, False
    if not docs_leaderboard.is_current():
        stale, name = check, docs_leaderboard.FILE.relative_to(ROOT)
        print(f"{name} is out of date; `make docs` writes it." if check else f"Written: {name}")
        if not check:
            docs_leaderboard.write()
    for page in [*pages(), ROOT / "docs" / leaderboard.INDEX]:
        if check:
            if lines := list(differences(page)):
                print(f"{page.relative_to(ROOT)} is out of date; `make docs` brings it up to date:", *lines, sep="\n")
                stale = True
        else:
            text = page.read_text(encoding="utf-8") if page.is_file() else ""
            if (wanted := leaderboard_page() if page.name == "index.html" else fill(text)) != text:
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(wanted, encoding="utf-8")
                print(f"Written: {page.relative_to(ROOT)}")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
