"""Claims: what is decided of made-up samples, what the page says of made-up records, and that every arm can be run."""

import json

import pytest

from hf_efficient.cli import main
from hf_efficient.experiments.claims import claims, report
from hf_efficient.experiments.claims.base import Claim, Options, Statement
from hf_efficient.experiments.claims.record import Record
from hf_efficient.experiments.claims.timed import Timed
from hf_efficient.experiments.claims.trained import Trained
from hf_efficient.experiments.claims.verdicts import decide, findings, mean, to_json, verdict
from hf_efficient.experiments.repetitions import ExperimentError
from hf_efficient.training import tasks


def arms(**samples):
    """name -> values by seed, of the metric accuracy"""
    return {name: {"samples": {"accuracy": dict(enumerate(x))}} for name, x in samples.items()}


BETTER = Statement("b is better than a", "accuracy", "a", "b", more=True, paper="2 over 1")
CHEAPER = Statement("b takes less than a", "accuracy", "a", "b", more=False, ratio=True)


@pytest.mark.parametrize(
    ("statement", "a", "b", "wanted"),
    [
        (BETTER, [0.70, 0.71, 0.72], [0.75, 0.765, 0.778], "holds"),
        (BETTER, [0.75, 0.765, 0.778], [0.70, 0.71, 0.72], "does not hold"),
        (BETTER, [0.70, 0.71, 0.72], [0.71, 0.70, 0.725], "undecided"),
        (CHEAPER, [10.0, 10.1, 10.2], [8.0, 8.1, 8.1], "holds"),
        (CHEAPER, [8.0, 8.1, 8.1], [10.0, 10.1, 10.2], "does not hold"),
        (CHEAPER, [10.0, 10.1, 10.2], [10.2, 10.0, 10.3], "undecided"),
    ],
)
def test_the_interval_decides(statement, a, b, wanted):
    found = decide(statement, arms(a=a, b=b))
    assert found.verdict == wanted and found.low < found.effect < found.high and found.seeds == 3
    assert (found.low <= statement.limit <= found.high) == (wanted == "undecided")


def test_a_bound_allows_for_a_loss():
    a, b = [0.70, 0.71, 0.72], [0.695, 0.706, 0.714]
    assert decide(BETTER, arms(a=a, b=b)).verdict == "does not hold"
    nearly = Statement("b loses less than a point", "accuracy", "a", "b", more=True, bound=-0.01)
    assert decide(nearly, arms(a=a, b=b)).verdict == "holds"


def test_too_few_seeds_decide_nothing():
    found = decide(BETTER, arms(a=[0.1, 0.2], b=[0.8, 0.9]))
    assert found.verdict == "undecided" and "too few repetitions" in found.reason and found.b == pytest.approx(0.85)
    assert "values above 0" in decide(CHEAPER, arms(a=[0.0, 0.0, 0.0], b=[1.0, 1.0, 1.0])).reason
    missing = decide(BETTER, {"a": {"samples": {}, "left_out": {"accuracy": "out of memory"}}})
    assert missing.verdict == "not run" and missing.reason == "a: out of memory"


def made(statements=(BETTER,)) -> Claim:
    words = {"source": "A paper, Table 1", "says": "b is better.", "figures": "2 over 1", "decided": "Small."}
    return Claim(name="kerformer_vit", parts=(), statements=statements, shown={"accuracy": "accuracy"}, **words)


def test_a_claim_needs_all_of_its_statements():
    first, second = BETTER, Statement("c is better than a", "accuracy", "a", "c", more=True)
    better, same, worse = [0.75, 0.765, 0.778], [0.70, 0.72, 0.71], [0.60, 0.611, 0.623]
    for c, wanted in ((better, "holds"), (same, "undecided"), (worse, "does not hold"), (None, "undecided")):
        samples = arms(a=[0.70, 0.71, 0.72], b=better, **({} if c is None else {"c": c}))
        assert verdict(findings(made((first, second)), samples)) == wanted
    assert verdict(findings(made(), {})) == "not run"


@pytest.fixture
def folder(tmp_path):
    """With the record of a run that decided it."""
    record = Record(tmp_path / "claims/kerformer_vit.json", "kerformer_vit")
    record.commands, record.commits, record.budgets = ["hf-efficient claims run kerformer_vit"], ["abc"], {"": "2min"}
    for seed, (a, b) in enumerate(((0.70, 0.75), (0.71, 0.765), (0.72, 0.778))):
        record.add("a", seed, {"accuracy": a}, command="hf-efficient train a")
        record.add("b", seed, {"accuracy": b})
    record.verdict = to_json(made(), record.arms)
    record.save()
    return tmp_path / "claims"


def test_the_page_says_what_the_records_say(folder):
    text = report.markdown(folder, [made()])
    for said in (
        "**holds**",
        "| b is better than a | 2 over 1 | 0.764 against 0.71 |",
        "[+0.0443, +0.0644], above +0",
    ):
        assert said in text, text
    assert "hf-efficient train a" in text and "commit abc" in text and "Seeds or rounds 0 to 2" in text
    assert "results/claims/kerformer_vit.json" in text
    found = json.loads((folder / "kerformer_vit.json").read_text())
    assert found["verdict"] == "holds" and found["statements"][0]["found_seeds"] == 3
    assert mean(found["arms"]["b"]["samples"]["accuracy"]) == pytest.approx(0.7643, abs=1e-4)


def test_the_page_keeps_its_words(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "claims", lambda: [made()])
    page = tmp_path / "claims.md"
    page.write_text("# Words\n\n<!-- generated: claims -->\nstale\n<!-- end -->\n")
    report.write_page(page, folder)
    first = page.read_text()
    assert first.startswith("# Words\n") and "**holds**" in first and "stale" not in first
    report.write_page(page, folder)
    assert page.read_text() == first


def test_claims_that_were_not_run_say_so(tmp_path):
    text = report.markdown(tmp_path, claims())
    assert text.count("**not run**") == len(claims()) == 11
    for one in claims():
        assert f"`hf-efficient claims run {one.name}` decides it" in text


def test_quick_records_are_no_evidence(tmp_path, folder):
    Record(tmp_path / "q/kerformer_vit.json", "kerformer_vit", quick=True).save()
    with pytest.raises(Exception, match="is of a quick run, which decides nothing"):
        report.markdown(tmp_path / "q", [made()])
    with pytest.raises(ExperimentError, match="is of a quick run of the claim kerformer_vit"):
        Record.load(tmp_path / "q/kerformer_vit.json", "kerformer_vit")
    with pytest.raises(ExperimentError, match="is of a run of the claim kerformer_vit"):
        Record.load(folder / "kerformer_vit.json", "text_speed")


def test_all_of_them_fit_into_twelve_hours(capsys):
    assert main(["claims", "list"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    minutes, hours = last.removeprefix("all").split(", ")
    assert float(minutes) <= 720 and hours == "12.0 h of one core"
    assert sum(cost.total for one in claims() for cost in one.cost(Options(budget="1min"))) < float(minutes)


def test_statements_are_of_arms_that_are_measured():
    for one in claims():
        counted = [part for part in one.parts if not isinstance(part, Timed)]
        known = {part.label(arm) for part in counted for arm in part.arms}
        for part in one.parts:
            if isinstance(part, Timed):
                cases = part.cases(False)
                known |= {part.label(arm) for case in cases for arm in case.make}
                assert max(len(case.make) for case in cases) == part.arms
                metrics = {f"{x}, {case.name}" for case in cases for x in (part.figures, *part.metrics)}
                own = [s for s in one.statements if s.a.startswith(f"{part.name}/") or not part.name]
                assert {s.metric for s in own} <= metrics
        derived = {"boxes/anywhere", *(f"{arm}, cut" for arm in known)}
        for statement in one.statements:
            assert {statement.a, statement.b} <= known | derived, statement


class Read(Exception):
    """The arguments of a run were fine."""


@pytest.mark.parametrize("quick", [False, True])
def test_every_arm_is_a_run_that_can_be_read(quick, monkeypatch):
    for module in {preparation.__module__ for preparation in tasks.PREPARATIONS.values()}:
        module = __import__(module, fromlist=["load_run"])

        def and_stop(*arguments, load=module.load_run, **options):
            load(*arguments, **options)
            raise Read

        monkeypatch.setattr(module, "load_run", and_stop)
    options, seen = Options(quick=quick), 0
    for one in claims():
        for part in (part for part in one.parts if isinstance(part, Trained)):
            for stage in (stage for stages in part.arms.values() for stage in stages):
                with pytest.raises(Read):
                    tasks.prepare(stage.config, [*part.words(stage, options), "--max_steps", "2"])
                seen += 1
    assert seen > 80


def test_unknown_claims_are_named(capsys):
    assert main(["claims", "run", "nothing"]) == 1
    assert "there is no claim 'nothing'; there are probabilistic_attention" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["claims", "run"])
