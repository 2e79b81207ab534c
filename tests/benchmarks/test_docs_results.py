"""The tables of results, energy and the README say what the committed cards and JSON files say."""

import json

import pytest
from huggingface_hub import ModelCard

from benchmarks import docs_headline, docs_results
from benchmarks.docs_tables import DOCS
from hf_efficient.experiments.budget_record import Arm, Pace, Record


def rows(table: str) -> dict[str, list[str]]:
    """First cell -> the others."""
    lines = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")]
    return {first.strip(): [cell.strip() for cell in others] for first, *others in lines[2:]}


def test_every_card_has_its_row():
    table = rows(docs_results.trained_models())
    cards = [file for file in docs_results.CARDS.glob("*.md") if file.name != "template.md"]
    assert cards
    for file in cards:
        data, metric, value, *_ = table[f"[`{file.stem}`](../model_cards/{file.name})"]
        scores = ModelCard.load(file).data.eval_results
        found = next(score.metric_value for score in scores if score.metric_name == metric)
        shown = 100 * found if value.endswith("%") else found
        assert float(value.rstrip(" %")) == pytest.approx(shown, abs=0.06) and data == scores[0].dataset_name
    assert "`cifar10_vit_small`" in table  # a baseline, once though three cards have it


def test_what_is_shown_beside_the_metric_that_decides(tmp_path):
    record = Record("14s", "test_map")
    for name, metrics in {"one": {"test_map": 0.3, "test_map_50": 0.61}, "two": {"test_map": 0.4}}.items():
        scores = {0: metrics["test_map"]}
        record.add(name, Arm([name], "", scores=scores, metrics={0: metrics}), Pace(2.0, 10.0, "", 1))
    file = tmp_path / docs_results.RECIPES / "cells.json"
    record.save(file)
    found = rows(docs_results.comparisons(tmp_path))
    assert found["`one`"][:3] == ["30.0", "30.0", "61.0"] and found["`two`"][:3] == ["40.0", "40.0", ""]


def test_energy_is_that_of_the_report():
    report = json.loads((DOCS / docs_results.ENERGY).read_text())
    table = rows(docs_results.energy_comparison())
    assert list(table) == list(report["energies"])
    for name, (joules, seeds, *_) in table.items():
        assert joules.startswith(f"{report['energies'][name]['centre']:,.0f} [")
        assert len(seeds.split()) == report["energies"][name]["size"]
    assert table["full"][2:] == ["", ""]
    ratio = next(pair["effect"] for pair in report["differences"] if (pair["a"], pair["b"]) == ("full", "longer"))
    assert table["longer"][2].startswith(f"{ratio:.2f} [")


def test_the_readme_shows_measured_ratios():
    table = [line.split("|")[3].strip() for line in docs_headline.headline().splitlines()[2:]]
    assert len(table) == len(docs_headline.ROWS) + 1
    for row, shown in zip(docs_headline.ROWS, table, strict=False):
        results = json.loads((DOCS / row.file).read_text())
        figures = results.get("figures") or results["targets"]
        value = next(x["value"] for x in figures if (x["group"], x["claim"]) == (row.group, row.claim))
        assert float(shown.split("x")[0]) == pytest.approx(value, rel=0.01)
    assert "the energy" in table[-1]
