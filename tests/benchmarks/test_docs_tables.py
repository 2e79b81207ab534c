"""The tables for the docs: all that the committed JSON files say is in them, and how it was made."""

import json
import shutil

import pytest

from benchmarks import docs_tables
from benchmarks.docs_tables import COMMANDS, DOCS

TABLES = {
    docs_tables.attention_floors: ["attention/targets.json"],
    docs_tables.model_speeds: ["models/mobilevit_v2_default_allocator.json", "models/models.json"],
    docs_tables.language_model_speeds: ["models/compressive_performer.json"],
    docs_tables.training_speed: ["training/training.json"],
    docs_tables.data_speed: ["data/data.json"],
}


@pytest.mark.parametrize(("table", "files"), TABLES.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_every_figure_is_in_its_table(table, files):
    text = table()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    rows = iter(row for row in rows if row[0] not in ("what", "---"))
    for file in files:
        results = json.loads((DOCS / "results" / file).read_text())
        for figure in results.get("figures") or results["targets"]:
            group, claim, measured, bound, verdict, note = next(rows)
            assert [group, claim, verdict, note] == [figure[key] for key in ("group", "claim", "verdict", "note")]
            assert bound == f"{'≤' if figure['at_most'] else '≥'} {figure['bound']:,g}"
            assert float(measured.replace(",", "")) == pytest.approx(figure["value"], rel=0.01, abs=0.0005)
        run = results["environment"]
        assert run["commit"] in text and run["date"] in text and f"(results/{file})" in text
        assert f"`{run.get('command') or COMMANDS[f'results/{file}']}`" in text
    assert next(rows, None) is None, "a row of no figure"


def test_the_attention_benchmark_names_every_mechanism_length_and_peer():
    text = docs_tables.attention_benchmark()
    results = json.loads((DOCS / "results/attention/benchmark.json").read_text())
    contenders = {row["contender"] for row in results["rows"]}
    starts = {line.split("|")[1].strip().rstrip("†") for line in text.splitlines() if line.startswith("|")}
    assert contenders <= starts
    assert all(f"N={row['length']}" in text for row in results["rows"])
    assert "Speed against SDPA, causal, forward+backward" in text and "Peak memory in MB" in text
    assert results["environment"]["commit"] in text and "(results/attention/benchmark.json)" in text


def test_a_recorded_command_is_quoted(tmp_path):
    """As it was given, whatever we say makes such a table."""
    name = "results/training/training.json"
    (tmp_path / name).parent.mkdir(parents=True)
    shutil.copy(DOCS / name, tmp_path / name)
    results = json.loads((tmp_path / name).read_text())
    results["environment"]["command"] = "python -m benchmarks.training --rounds 3"
    (tmp_path / name).write_text(json.dumps(results))
    text = docs_tables.training_speed(tmp_path)
    assert "`python -m benchmarks.training --rounds 3` made it." in text and COMMANDS[name] not in text
