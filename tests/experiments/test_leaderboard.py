"""The leaderboard: rows that are filled and gone on with, the Pareto front, the table and the page."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import pytest

from hf_efficient.attention import list_attentions
from hf_efficient.cli import main
from hf_efficient.experiments.budget_record import Pace
from hf_efficient.experiments.leaderboard import page, rows
from hf_efficient.experiments.leaderboard.page import entries, front, html, markdown, write_pages
from hf_efficient.experiments.leaderboard.plot import nice_range
from hf_efficient.experiments.leaderboard.rows import TASKS, Row, family, load_rows
from hf_efficient.experiments.repetitions import ExperimentError

VOID = {"meta", "br"}


def row(mechanism: str, score: float, memory: int = 10**9, watts: float = 20.0, task: str = "cifar10") -> Row:
    metric = "test_accuracy" if task == "cifar10" else "test_bits_per_byte"
    pace = Pace(0.5, watts, "CPU estimated <by load>", 2)
    made = Row(
        task, mechanism, TASKS[task].config, "", "8min", f"hf-efficient train x --attention {mechanism}", pace, 960
    )
    return replace(made, metric=metric, scores={"0": score}, peak_memory=memory, parameters=9, commit="a" * 40)


@pytest.fixture
def docs(tmp_path):
    """Rows of two tasks, and a system of one."""
    docs = tmp_path / "docs"
    folder = docs / "results/leaderboard"
    made = [row("softmax", 0.70), row("kerformer", 0.75, 9 * 10**8), row("fnet", 0.60, 8 * 10**8), row("xcit", 0.65)]
    made += [row("softmax", 2.1, task="enwik8"), row("performer", 2.3, watts=21.0, task="enwik8")]
    for each in made:
        each.save(folder)
    replace(row("axial", 0.5), scores={}).save(folder)  # rehearsed only
    arm = {"settings": ["cifar10_vit_small"], "scores": {"0": 0.78}, "steps": 5, "seconds": 960.0, "joules": 1.0}
    arm["config_sha256"] = "b" * 64
    recipes = {
        "budget": "16min",
        "metric": "test_accuracy",
        "arms": {"cifar10_vit_small": arm | {"pace": {"threads": 1, "method": "m"}}},
    }
    (docs / "results/recipes").mkdir()
    (docs / "results/recipes/cifar10.json").write_text(json.dumps(recipes))
    (docs / "leaderboard.md").write_text("# Words\n\n<!-- generated: leaderboard -->\nstale\n<!-- end -->\n")
    return docs


def folder_of(docs):
    return docs / "results/leaderboard"


def test_every_mechanism_has_a_family_and_its_tasks():
    assert TASKS["cifar10"].mechanisms() == list_attentions()
    causal = TASKS["enwik8"].mechanisms()
    assert {"softmax", "performer", "linear_elu"} <= set(causal) and "separable" not in causal and "fnet" not in causal
    kinds = {name: family(name) for name in list_attentions()}
    assert kinds["softmax"] == "full" and kinds["performer"] == "kernel" and kinds["fnet"] == "mixing"
    assert kinds["local"] == kinds["lsh"] == kinds["window"] == "sparse" and kinds["linformer"] == "low rank"


def test_nobody_on_the_front_is_beaten(docs):
    found = [entry for entry in entries(docs, folder_of(docs)) if entry.task == "cifar10"]
    assert [entry.name for entry in found] == ["cifar10_vit_small", "kerformer", "softmax", "xcit", "fnet"]
    assert front(found) == {"kerformer", "fnet"}  # the best, and the one with the least memory
    assert front([x for x in entries(docs, folder_of(docs)) if x.task == "enwik8"]) == {"softmax"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps addresses and rows."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.addresses, self.rows, self.tags = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.addresses += [attributes[name] for name in ("href", "src") if name in attributes]
        self.tags.append(tag)
        if tag == "tr" and "id" in attributes:
            self.rows.append(attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_elsewhere(docs):
    text = html(docs, folder_of(docs))
    found = Page(text)
    assert not found.open and found.tags.count("svg") == 4
    assert not re.search(r"https?://|@import|url\(|//cdn", text)
    assert len(found.rows) == 7 and {"cifar10-kerformer", "enwik8-performer"} < {each["id"] for each in found.rows}
    best = next(each for each in found.rows if each["id"] == "cifar10-kerformer")
    assert best["class"] == "best" and (best["data-causal"], best["data-linear"], best["data-family"]) == (
        "yes",
        "yes",
        "kernel",
    )
    local = [address for address in found.addresses if address.startswith("../results")]
    assert len(local) == 7 and all((docs / "leaderboard" / address).resolve().is_file() for address in local)
    assert "hf-efficient train x --attention kerformer" in text and "a" * 12 in text
    assert "&lt;by load&gt;" in text and "<by load>" not in text


def test_systems_are_shown_without_mechanisms(docs):
    shutil.rmtree(folder_of(docs))
    assert "### CIFAR-10" in markdown(docs, folder_of(docs)) and "*`cifar10_vit_small`*" in markdown(
        docs, folder_of(docs)
    )
    found = Page(html(docs, folder_of(docs)))
    assert [each["id"] for each in found.rows] == ["cifar10-cifar10_vit_small"] and not found.open


def test_an_empty_leaderboard_says_so(tmp_path):
    assert markdown(tmp_path, tmp_path / "none") == page.NOTHING
    text = html(tmp_path, tmp_path / "none")
    assert "Nothing measured yet" in text and not Page(text).open and "<select" not in text


def test_the_report_writes_both(docs, monkeypatch, capsys):
    monkeypatch.chdir(docs.parent)
    assert main(["leaderboard", "--report"]) == 0
    text = (docs / "leaderboard.md").read_text()
    assert text.startswith("# Words") and "stale" not in text
    link = "[`kerformer`](results/leaderboard/cifar10_kerformer.json)"
    assert f"| {link} | 75.0 % | 1 | 8min | 960 | 9,600 | 900 | 9 | yes |" in text
    assert "| *`cifar10_vit_small`* | 78.0 % | 1 | 16min of 1 core |" in text and "axial" not in text
    assert (docs / "leaderboard/index.html").read_text() == html(docs, folder_of(docs))
    write_pages(docs, folder_of(docs))
    assert (docs / "leaderboard.md").read_text() == text


def test_rows_are_filled_and_gone_on_with(tmp_path, monkeypatch, preloaded):
    monkeypatch.setattr("sys.executable", preloaded.python)
    tiny = replace(TASKS["cifar10"], settings=("--use_cls_token", "false", *TASKS["cifar10"].quick))
    monkeypatch.setitem(rows.TASKS, "cifar10", tiny)
    monkeypatch.setattr(rows, "rehearse", partial(rows.rehearse, rounds=1, seconds=0.01))
    finish, asked = rows.finish, []

    def killed_at_the_second(repetition, environment):
        if asked:
            raise KeyboardInterrupt
        asked.append(repetition.variant.name)
        finish(repetition, environment)

    options = {"budget": "0.05s", "rows": tmp_path / "rows", "output_dir": tmp_path / "runs"}
    words = {"tasks": ["cifar10"], "mechanisms": ["softmax", "axial"], **options}
    monkeypatch.setattr(rows, "finish", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        rows.fill(**words)
    first = Row.load(tmp_path / "rows/cifar10_axial.json")
    assert [each.mechanism for each in load_rows(tmp_path / "rows")] == asked == ["axial"]
    assert first.peak_memory > 2**26 and first.parameters and first.commit and first.steps >= 1
    assert not Row.load(tmp_path / "rows/cifar10_softmax.json").scores  # rehearsed beside it

    monkeypatch.setattr(rows, "finish", finish)
    monkeypatch.setattr(rows, "rehearse", None)
    assert [bool(each.scores) for each in rows.fill(**words)] == [True, True]
    assert Row.load(tmp_path / "rows/cifar10_axial.json") == first
    with pytest.raises(ExperimentError, match=r"is of 0.05s, not of 8min"):
        rows.fill(**{**words, "budget": "8min"})
    with pytest.raises(ExperimentError, match="there is no mechanism 'nothing'"):
        rows.fill(**{**words, "mechanisms": ["nothing"]})
    with pytest.raises(ExperimentError, match="there is no task 'mnist'"):
        rows.fill(**{**words, "tasks": ["mnist"]})


def test_quick_keeps_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", "--quick", "--mechanisms", "kerformer", "fnet"]) == 0
    shown = capsys.readouterr().out
    assert "enwik8, kerformer, seed 0" in shown and "cifar10  fnet" in shown
    assert not list(tmp_path.iterdir())


def test_axes_have_round_numbers():
    assert nice_range([0.61, 0.79]) == [0.6, 0.65, 0.7, 0.75, 0.8]
    for values in ([10.1, 10.2], [5.0, 5.0], [600.0, 1100.0]):
        found = nice_range(values)
        assert found[0] <= min(values) and found[-1] >= max(values) and 2 <= len(found) <= 9
