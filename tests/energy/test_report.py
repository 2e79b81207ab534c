import dataclasses
import json

import pytest
import yaml
from energy_cases import make_report
from huggingface_hub import ModelCardData

from hf_efficient.energy import EnergyReport
from hf_efficient.energy.report import Baseline, Row, counted_by


def test_sums():
    report = make_report()
    assert report.joules() == 340 and report.joules("train") == 310 and report.joules("inference") == 13
    assert report.joules("train", 2) == 160 and report.joules(component="ram") == 110
    assert report.kwh() == pytest.approx(340 / 3.6e6)
    assert report.seconds() == 22 and report.items("train") == 2000
    assert report.joules_per_item("train") == pytest.approx(0.155)
    assert report.grams() == pytest.approx(340 / 3.6e6 * 360)
    assert report.phases == ["train", "eval", "inference"]
    assert report.steps() == [("train", 1), ("eval", 1), ("train", 2), ("inference", 0)]


def test_net_is_gross_without_what_the_idle_machine_draws():
    assert make_report().net_joules() is None
    report = make_report(baselines=(Baseline(0, 5.0, cpu=2.0, gpu=0.0, ram=6.0),))  # 6 W idle is above the 5 W counted
    assert report.net_joules("train") == pytest.approx(210 - 2 * 20)


def test_ranks_are_summed_and_work_side_by_side():
    other = make_report(rows=(Row("train", 1, 1, seconds=11.0, cpu=90.0),), alarms={"others": "x"})
    report = make_report().with_rows_of([other])
    assert report.joules("train", 1) == 240
    assert report.seconds("train", 1) == 11 and report.seconds() == 22
    assert report.alarms == {"others": "x"}


@pytest.mark.parametrize(
    ("measured", "counts"),
    [
        ([{"cpu": "a", "ram": "a"}], [{"cpu", "ram"}]),
        ([{"cpu": "a", "ram": "a"}] * 2, [{"cpu", "ram"}, set()]),  # a machine counts once
        ([{"cpu": "a"}, {"cpu": "a"}, {"cpu": "b"}, {"cpu": "b"}], [{"cpu"}, set(), {"cpu"}, set()]),  # two nodes
        ([{"cpu": "a, 1", "ram": "a"}, {"cpu": "a, 2", "ram": "a"}], [{"cpu", "ram"}, {"cpu"}]),  # process scope
        ([{"cpu": "a", "gpu": "a, 0"}, {"cpu": "a", "gpu": "a, 1"}], [{"cpu", "gpu"}, {"gpu"}]),  # a GPU each
        ([{}, {"cpu": "a"}], [set(), {"cpu"}]),  # rank 0 has no tracker
    ],
)
def test_ranks_count_each_thing_once(measured, counts):
    assert [counted_by(measured, rank) for rank in range(len(measured))] == counts


def test_json_round_trip(tmp_path):
    report = make_report(baselines=(Baseline(0, 5.0, 2.0, 0.0, 5.0),), alarms={"gap": "why"}, budget=5.0, lost=3.0)
    assert EnergyReport.from_json(report.to_json()) == report
    report.save(tmp_path / "new" / "energy.json")
    assert EnergyReport.load(tmp_path / "new" / "energy.json") == report
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["energy.json"]
    assert json.loads(report.to_json())["summary"]["train_joules_per_image"] == pytest.approx(0.155)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1}'])
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "energy.json").write_text(text)
    with pytest.raises(ValueError, match=r"energy\.json is not an energy report"):
        EnergyReport.load(tmp_path / "energy.json")


def test_a_record_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_report().run = "other"


def test_the_card_gets_grams_and_the_truth_about_methods():
    emissions = make_report().co2_eq_emissions("fine-tuning")
    assert emissions["emissions"] == pytest.approx(0.034)
    assert emissions["training_type"] == "fine-tuning" and emissions["geographical_location"] == "Germany"
    assert emissions["hardware_used"] == "2 threads of a fake"
    assert "CPU estimated from load, RAM constant, not measured" in emissions["source"]
    card = yaml.safe_load(ModelCardData(co2_eq_emissions=emissions).to_yaml())
    assert card["co2_eq_emissions"] == emissions


def test_without_measurement_there_is_time_and_no_claim():
    report = make_report(components=(), rows=(Row("train", 1, seconds=5.0, items=10),))
    assert report.joules() is None and report.grams() is None and report.co2_eq_emissions() is None
    assert report.seconds() == 5 and "not measured; training and evaluation took 5 s" in report.to_markdown()
    assert EnergyReport.from_json(report.to_json()) == report


def test_markdown_says_what_is_known_and_how():
    text = make_report(alarms={"ram-share": "too much memory"}, restarts=2, lost=7200.0, budget=3.6e6).to_markdown()
    assert text.startswith("**Energy**: 340 J in 22 s, 0.034 g CO2e; partly or wholly estimated\n")
    assert "| 1 | train | 10 | 100 | 0 | 50 | 150 | 0.15 | 0.015 |" in text
    assert "|  | **train + eval** | 22 | 230 | 0 | 110 | 340 | – | 0.034 |" in text
    assert "- CPU estimated from load (20 W · (0.1 + 0.9 · load³)), scope: machine" in text
    assert "- RAM constant, not measured" in text
    assert "360 g/kWh, Germany (a table)" in text
    assert "- **Alarm**: too much memory" in text
    assert "taken up again 2 times; 2 Wh went into work that was lost" in text and "budget: 1 kWh" in text


def test_net_energies_have_a_column():
    text = make_report(baselines=(Baseline(0, 5.0, 2.0, 0.0, 5.0),)).to_markdown()
    assert "| net J |" in text and "net of the idle machine" in text and "idle: 7 W" in text


def test_plot(tmp_path):
    make_report().plot(tmp_path / "energy.png")
    assert (tmp_path / "energy.png").read_bytes().startswith(b"\x89PNG")
