"""Steps per second of classifiers of texts: what is written, and what the table says."""

import json

from benchmarks.text import BERT, FITTING, main, speed_table, steps
from benchmarks.workloads import FORWARD, TRAINING


def test_a_run_writes_its_figures(tmp_path, capsys):
    given = ["--lengths", "32", "16", "--mechanisms", "linear_elu", "--layers", "1", "--rounds", "2"]
    assert main([*given, "--output", str(tmp_path), "--default-allocator"]) == 0
    results = json.loads((tmp_path / "text.json").read_text())
    assert {(row["contender"], row["length"], row["pass"]) for row in results["rows"]} == {
        (name, length, step) for name in (BERT, "linear_elu") for length in (16, 32) for step in (FORWARD, TRAINING)
    }
    assert all(len(row["seconds"]) == 2 for row in results["rows"])
    header, rows = speed_table(results, TRAINING)
    assert header == ["", "N=16", "N=32"] and [row[0] for row in rows] == [BERT, "`linear_elu`"]
    assert "A training step: speed against transformers' BERT" in capsys.readouterr().out


def test_both_have_one_size_and_learn():
    ours, theirs = (steps(name, 1, 2, 8) for name in ("softmax", BERT))
    count = [sum(p.numel() for name, p in x.model.named_parameters() if "pooler" not in name) for x in (ours, theirs)]
    assert abs(count[0] / count[1] - 1) < 0.01, "BERT has types of tokens and a pooler besides"
    before = ours.model.classifier.weight.clone()
    ours.train()
    assert ours.model.training and (ours.model.classifier.weight != before).any()
    ours.infer()
    assert not ours.model.training


def test_every_mechanism_that_fits_takes_part():
    assert {"kerformer", "softmax", "performer", "longformer", "bigbird", "dct"} <= set(FITTING)
    assert "window" not in FITTING and "fnet" not in FITTING
