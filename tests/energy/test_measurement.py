import time

import pytest
from energy_cases import Clock, FakeTracker, make_report

from hf_efficient.energy import EnergyMeter, EnergyReport
from hf_efficient.energy.report import Row
from hf_efficient.energy.tracker import TrackerUnavailable

NEVER = {"interval": 1000}  # the background thread keeps out of the way


@pytest.fixture
def clock():
    return Clock()


def make_meter(clock, options=NEVER, **changes) -> EnergyMeter:
    return EnergyMeter(options, make_tracker=lambda *_: FakeTracker(clock), clock=clock, **changes)


def test_energy_is_booked_to_the_phase_that_is_on(clock):
    with make_meter(clock) as meter:
        clock.pass_by(7)  # nobody's
        with meter.phase("train", 1):
            clock.pass_by(10)
            meter.add_items(100)
            with meter.phase("eval", 1):
                clock.pass_by(4)
            clock.pass_by(2)
        clock.pass_by(7)
        with meter.phase("inference"):
            clock.pass_by(1)
    rows = {(row.phase, row.epoch): row for row in meter.report().rows}
    assert rows["train", 1] == Row("train", 1, 0, 12.0, 120.0, 0.0, 60.0, 100)
    assert rows["eval", 1] == Row("eval", 1, 0, 4.0, 40.0, 0.0, 20.0)
    assert rows["inference", 0].joules == 15
    assert meter.report().joules() == 240 and not meter.running


def test_the_sum_is_reckoned_on_between_readings(clock):
    with make_meter(clock) as meter:
        meter.enter("train", 1)
        clock.pass_by(10)
        assert meter.joules == 0  # nothing is known yet
        meter.sample()
        clock.pass_by(2)
        assert meter.joules == 150 + 30
        meter.leave()
        clock.pass_by(100)
        assert meter.joules == 180


def test_readings_come_by_themselves_and_are_written(tmp_path):
    clock = Clock()
    meter = make_meter(clock, {"interval": 0.05}, path=tmp_path / "energy.json").start()
    meter.enter("train", 1)
    clock.pass_by(10)
    deadline = time.monotonic() + 20
    while not (tmp_path / "energy.json").exists() or EnergyReport.load(tmp_path / "energy.json").joules() != 150:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not EnergyReport.load(tmp_path / "energy.json").finished
    meter.stop()


def test_it_can_be_stopped_and_started_again(clock):
    meter = make_meter(clock)
    for _ in range(2):
        with meter:
            meter.enter("train", 1)
            clock.pass_by(10)
        clock.pass_by(50)
    assert meter.report().joules() == 300 and meter.report().seconds() == 20
    meter.stop()
    meter.sample()
    assert meter.report().joules() == 300


def test_idle_baseline(clock, monkeypatch):
    with make_meter(clock) as meter:
        monkeypatch.setattr(meter._end, "wait", clock.pass_by)
        meter.measure_idle(5)
        assert meter.has_baseline
        with meter.phase("train", 1):
            clock.pass_by(10)
    (idle,) = meter.report().baselines
    assert (idle.seconds, idle.cpu, idle.ram) == (5, 10, 5)
    assert meter.report().joules() == 150 and meter.report().net_joules() == 0


def test_only_what_counts_is_booked(clock):
    with make_meter(clock, rank=1) as meter:
        meter.counts = {"cpu"}
        with meter.phase("train", 1):
            clock.pass_by(10)
    assert meter.report().rows == (Row("train", 1, 1, 10.0, 100.0, 0.0, 0.0),)


def test_without_a_tracker_time_is_taken_and_it_is_said_once(clock, monkeypatch):
    said = []
    monkeypatch.setattr("hf_efficient.energy.measurement.logger.warning", said.append)

    def make_none(*_):
        raise TrackerUnavailable("energy is not measured, only time: there is no codecarbon")

    meter = EnergyMeter(NEVER, make_tracker=make_none, clock=clock)
    for _ in range(2):
        with meter, meter.phase("train", 1):
            clock.pass_by(10)
    assert said == ["energy is not measured, only time: there is no codecarbon"]
    report = meter.report()
    assert report.seconds() == 20 and report.joules() is None and "codecarbon" in report.alarms["failure"]
    assert EnergyReport.from_json(report.to_json()) == report


def test_a_tracker_that_breaks_breaks_nothing(clock):
    tracker = FakeTracker(clock)
    with EnergyMeter(NEVER, make_tracker=lambda *_: tracker, clock=clock) as meter, meter.phase("train", 1):
        clock.pass_by(10)
        meter.sample()
        tracker.broken = True
        clock.pass_by(10)
        meter.sample()
        assert "the wire is cut" in meter.report().alarms["failure"]
    assert meter.report().joules() == 150 and meter.report().seconds() == 20 and tracker.stopped


def test_a_full_disk_costs_a_warning(clock, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("hf_efficient.energy.measurement.logger.warning_once", said.append)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with make_meter(clock, path=tmp_path / "energy.json") as meter, meter.phase("train", 1):
        clock.pass_by(10)
    assert "no space left" in said[0] and meter.report().joules() == 150


def test_a_pause_is_noticed(clock):
    with make_meter(clock, {"interval": 10}) as meter, meter.phase("train", 1):
        clock.pass_by(10)
        meter.sample()
        assert "gap" not in meter.report().alarms
        clock.pass_by(100)
        meter.sample()
    assert "90 s nothing was read" in meter.report().alarms["gap"]


def test_disabled_means_nothing_is_measured(clock):
    with make_meter(clock, {"enabled": False}) as meter, meter.phase("train", 1):
        clock.pass_by(10)
    assert not meter.report().components


def test_a_run_goes_on_from_where_it_stood(clock):
    past = make_report(restarts=1, lost=5.0, alarms={"gap": "long ago"}, finished=True, hardware="another machine")
    with make_meter(clock) as meter:
        meter.resume(past, lost=100.0)
        assert meter.joules == 340
        with meter.phase("train", 2):
            clock.pass_by(2)
        report = meter.report()
    assert report.run == past.run and report.restarts == 2 and report.lost == 105 and not report.finished
    assert report.joules() == 340 + 30 and report.joules("train", 2) == 160 + 30
    assert report.alarms["gap"] == "long ago" and "another machine" in report.alarms["moved"]


def test_ranks_that_are_gone_keep_what_they_spent(clock):
    rows = (Row("train", 1, 0, cpu=1.0), Row("train", 1, 1, cpu=2.0), Row("train", 1, 2, cpu=4.0))
    meter = make_meter(clock)
    meter.resume(make_report(rows=rows), ranks=2)
    assert meter.own_report().joules() == 1 and meter.report().joules() == 1 + 4  # rank 1 will tell of itself
    other = make_meter(clock, rank=1)
    other.resume(make_report(rows=rows), ranks=2)
    assert other.report().joules() == 2


def test_an_unknown_phase_is_named(clock):
    with pytest.raises(ValueError, match="phase='test' must be one of train, eval, inference"):
        make_meter(clock).enter("test")
