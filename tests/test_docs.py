"""README.md and docs/*.md: snippets run, commands exist, links lead somewhere, figures are those of the JSON files."""

import argparse
import re
import shlex
import shutil
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from hf_efficient import cli
from hf_efficient.training.configs import find_config
from hf_efficient.training.tasks import (
    image_classification,
    image_pretraining,
    image_segmentation,
    language_modelling,
    object_detection,
    text_classification,
)

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed: they run from a clone

from benchmarks import docs_pages  # noqa: E402

PAGES = docs_pages.pages()
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def snippets(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [snippet for stated, snippet in found if stated == language]


def command_lines() -> list[str]:
    """Of all snippets without a language, without comments, and joined where a line ends with a backslash."""
    lines = (snippet.replace("\\\n", " ").splitlines() for page in PAGES for snippet in snippets(page, ""))
    return sorted({shlex.join(shlex.split(line, comments=True)) for snippet in lines for line in snippet} - {""})


@each_page
@pytest.mark.filterwarnings("ignore")
def test_snippets_run(page, tmp_path, monkeypatch):
    """Top to bottom, as a newcomer would paste them."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for snippet in snippets(page, "python"):
        try:
            exec(compile(snippet, page.name, "exec"), names)
        except ModuleNotFoundError as error:
            if error.name.startswith(("hf_efficient", "benchmarks")):
                raise
            pytest.skip(f"{error.name} is not installed; it comes with an extra")


class Parsed(Exception):
    """The arguments of a command were fine."""


def parsed_only(function):
    """The function that parses arguments, which then ends the command."""

    def parse_and_stop(*arguments, **options):
        function(*arguments, **options)
        raise Parsed

    return parse_and_stop


@pytest.fixture
def parse_only(monkeypatch):
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed_only(argparse.ArgumentParser.parse_args))
    tasks = (image_classification, image_pretraining, image_segmentation)
    tasks += (language_modelling, object_detection, text_classification)
    for task in tasks:
        monkeypatch.setattr(task, "load_run", parsed_only(task.load_run))


def check_hf_efficient(words: list[str]) -> None:
    name, *words = words
    assert name in cli.COMMANDS
    if name == "train":
        for config in takewhile(lambda word: not word.startswith("-"), words):
            find_config(config)
    if words and words[-1] != "--help":
        with pytest.raises(Parsed):
            cli.subcommand(name).main(words)


@pytest.mark.parametrize("line", command_lines())
def test_commands_exist(line, tmp_path, monkeypatch, parse_only):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "configs/digits_hugginggreen_vit.yaml", "my_run.yaml")
    program, *words = shlex.split(line)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    elif program == "hf-efficient":
        check_hf_efficient(words)
    elif "hf_efficient" in words:
        check_hf_efficient(words[words.index("hf_efficient") + 1 :])
    elif program in ("python", "accelerate"):
        paths = [word for word in words if "/" in word]
        assert paths and all((ROOT / path).is_file() for path in paths)
    else:
        assert program == "pip"


@each_page
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, part = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if part:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert part in [heading.lower().replace(" ", "-") for heading in headings], target


def test_every_page_is_linked():
    linked = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        if page.name != "README.md":
            assert f"(docs/{page.name})" in linked[0] and f"({page.name})" in linked[1]


def test_snippets_are_found():
    assert len(snippets(PAGES[0], "python")) >= 5 and len(command_lines()) > 30


def test_the_readme_is_short():
    assert (ROOT / "README.md").stat().st_size < 9000


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/leaderboard/index.html"], ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page):
    changed = "\n".join(docs_pages.differences(page))
    assert not changed, f"{page.relative_to(ROOT)} is out of date; `make docs` brings it up to date:\n{changed}"
