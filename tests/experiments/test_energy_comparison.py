"""The experiment, with a script in the trainer's place that writes what its config says."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from hf_efficient.cli import main
from hf_efficient.energy import EnergyReport
from hf_efficient.energy.report import Component, Row
from hf_efficient.experiments.repetitions import ExperimentError, Variant, find_metric, plan

TRAINER = """
    import json, sys
    from pathlib import Path

    config, *words = sys.argv[1:]
    given = {key.removeprefix("--"): value for key, value in zip(words[::2], words[1::2])}
    config = json.loads(Path(config).read_text()) | given
    folder, seed, here = Path(config["output_dir"]), int(config["seed"]), Path(sys.argv[0]).parent
    with (here / "calls.txt").open("a") as calls:
        print(folder.parent.name, seed, file=calls)
    if config.get("fails"):
        sys.exit("out of cheese")
    noise = [0.4, -1.1, 0.3, 1.2, -0.6, 0.1, -0.9, 0.8][seed * int(config.get("stride", 1)) % 8]
    folder.mkdir(parents=True)
    report = json.loads((here / "energy.json").read_text())
    report["rows"][0]["cpu"] = config["joules"] + noise
    (folder / "energy.json").write_text(json.dumps(report))
    score = 0.8 + noise / 1000
    (folder / "results.json").write_text(json.dumps({"metrics": {"eval_accuracy": score, "eval_f1_micro": score}}))
"""
REPORT = EnergyReport(
    "r",
    rows=(Row("train", 1, 0, 10.0, 0.0, 0.0, 50.0, 100), Row("eval", 1, 0, 1.0, 9.0)),
    components=(Component("cpu", "load", "8 W", "machine"), Component("ram", "constant", "5 W", "machine")),
    alarms={"ram-share": "mostly memory"},
    finished=True,
)


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "trainer.py").write_text(textwrap.dedent(TRAINER))
    REPORT.save(tmp_path / "energy.json")
    for name, joules in (("full", 100), ("half", 40)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"joules": joules}))
    return tmp_path


def measure(lab: Path, *words: str) -> int:
    return main(["energy", *words, "--script", str(lab / "trainer.py"), "--output_dir", str(lab / "out")])


def calls(lab: Path) -> list[str]:
    return (lab / "calls.txt").read_text().splitlines()


def test_the_experiment_tells_a_saving_and_goes_on_where_it_stopped(lab, capsys):
    runs = [str(lab / "full.yaml"), f"{lab / 'half.yaml'},stride=3"]
    assert measure(lab, *runs, "-n", "3", "--countries", "DEU", "NOR") == 0
    assert calls(lab) == ["full 0", "half 0", "full 1", "half 1", "full 2", "half 2"]
    printed = capsys.readouterr().out
    assert "[1/6] full, seed 0: running" in printed and "micro-F1 80.04 %" in printed and "min left" in printed
    text = (lab / "out" / "report.md").read_text()
    assert re.search(r"\*\*half\*\* against full: saves (39|40)\.", text)
    assert "**half**: yes" in text and "| Germany | 38" in text and "No counter measured CPU and RAM here" in text
    assert "CPU estimated from load (8 W), scope: machine" in text and "RAM constant, not measured" in text
    assert "**Alarm** in 6 of 6 repetitions: mostly memory" in text
    assert "half / full" in text and "paired t" in text and "Shapiro-Wilk" in text
    for name in ("energies.png", "energy_and_f1.png"):
        assert (lab / "out" / name).read_bytes().startswith(b"\x89PNG") and name in text
    record = json.loads((lab / "out" / "report.json").read_text())
    assert record["arms"] == {"full": "full", "half": "half, stride 3"}  # what each is, in words
    assert len(record["outcomes"]) == 6 and record["outcomes"][0]["joules_per_f1"] == pytest.approx(150.4 / 0.8004)

    assert measure(lab, *runs, "-n", "4") == 0  # two more
    assert calls(lab)[6:] == ["full 3", "half 3"]
    assert "[1/8] full, seed 0: finished before" in capsys.readouterr().out


def test_no_saving_is_said_plainly(lab):
    assert measure(lab, f"a={lab / 'full.yaml'}", f"b={lab / 'full.yaml'},stride=5", "-n", "4") == 0
    text = (lab / "out" / "report.md").read_text()
    assert "**b** against a: no saving shown" in text and "**b**: no." in text


def test_too_few_repetitions_are_said_plainly(lab):
    assert measure(lab, str(lab / "full.yaml"), str(lab / "half.yaml"), "-n", "2") == 0
    text = (lab / "out" / "report.md").read_text()
    assert "too few repetitions to tell" in text and "saves" not in text and "(no interval)" in text


def test_one_run_alone(lab):
    assert measure(lab, str(lab / "full.yaml"), "-n", "3") == 0
    assert "measured alone" in (lab / "out" / "report.md").read_text()


def test_a_run_that_fails_is_quoted_and_what_finished_is_kept(lab, capsys):
    runs = [str(lab / "full.yaml"), str(lab / "half.yaml")]
    (lab / "half.yaml").write_text('{"joules": 40, "fails": true}')
    assert measure(lab, *runs, "-n", "2") == 1
    error = capsys.readouterr().err
    assert (
        "half, seed 0 failed with exit code 1" in error and "out of cheese" in error and "continues from here" in error
    )
    (lab / "half.yaml").write_text('{"joules": 40}')
    assert measure(lab, *runs, "-n", "2") == 0
    assert calls(lab) == ["full 0", "half 0", "half 0", "full 1", "half 1"]


def test_an_interrupted_repetition_starts_anew(lab):
    assert measure(lab, str(lab / "full.yaml"), "-n", "2") == 0
    marker = lab / "out" / "full" / "seed_1.json"
    marker.write_text(marker.read_text().replace("true", "false"))
    assert measure(lab, str(lab / "full.yaml"), "-n", "2") == 0  # the trainer fails where its folder exists already
    assert calls(lab) == ["full 0", "full 1", "full 1"]


def test_other_peoples_folders_are_not_touched(lab, capsys):
    assert measure(lab, str(lab / "full.yaml"), "-n", "1") == 0
    (lab / "full.yaml").write_text('{"joules": 77}')
    assert measure(lab, str(lab / "full.yaml"), "-n", "1") == 1
    assert "a run of another command or config" in capsys.readouterr().err
    (lab / "out" / "half" / "seed_0").mkdir(parents=True)
    (lab / "out" / "half" / "seed_0" / "thesis.tex").touch()
    assert measure(lab, str(lab / "half.yaml"), "-n", "1") == 1
    assert "has other files in it" in capsys.readouterr().err
    assert (lab / "out" / "half" / "seed_0" / "thesis.tex").exists()


def test_a_dry_run_prints_and_runs_nothing(lab, capsys):
    assert measure(lab, f"x={lab / 'full.yaml'},top_k=32", "-n", "2", "--set", "country=DEU", "--dry-run") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(f"--output_dir {lab / 'out' / 'x' / 'seed_0'} --seed 0 --country DEU --top_k 32")
    assert "--seed 1" in second and not (lab / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.yaml"], "Error: there is no file 'none.yaml'"),
        (["full.yaml,top_k"], "'top_k' in"),
        (["full.yaml", "full.yaml"], "two runs are called full"),
        (["full.yaml", "--countries", "Q"], "energy.country='Q'"),
    ],
)
def test_wrong_arguments_are_named(lab, capsys, monkeypatch, words, message):
    monkeypatch.chdir(lab)
    assert measure(lab, *words) == 1
    assert message in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["energy", "--help"])
    text = capsys.readouterr().out
    assert "interleaved" in text and "Shapiro-Wilk" in text and "half=my_run.yaml" in text


def test_metrics_are_found_wherever_they_stand():
    assert find_metric({"accuracy": 0.5}, "accuracy") == 0.5
    assert find_metric({"metrics": {"eval_f1_micro": 0.25}, "seed": 1}, "f1_micro") == 0.25
    assert find_metric({"accuracy": "high"}, "accuracy") is None


def test_seeds_must_differ(lab):
    with pytest.raises(ExperimentError, match="must differ"):
        plan([Variant.parse(str(lab / "full.yaml"))], [1, 1], lab, lab / "trainer.py", python=sys.executable)
