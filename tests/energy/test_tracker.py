"""The real codecarbon, for a few seconds, with nowhere to call."""

import builtins
import logging
import os
import time
from pathlib import Path

import pytest

from hf_efficient.energy import EnergyMeter, EnergyOptions
from hf_efficient.energy.tracker import Tracker, TrackerUnavailable, _describe

pytest.importorskip("codecarbon")


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def test_the_real_tracker_offline(no_network, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    # what a user's environment might ask codecarbon to do, and must not get it to do here
    monkeypatch.setenv("CODECARBON_CO2_SIGNAL_API_TOKEN", "secret")
    monkeypatch.setenv("CODECARBON_EMISSIONS_ENDPOINT", "https://example.org")
    monkeypatch.setenv("CODECARBON_SAVE_TO_API", "true")
    monkeypatch.setenv("CODECARBON_OUTPUT_METHODS", "api,csv")
    monkeypatch.setenv("CODECARBON_ALLOW_MULTIPLE_RUNS", "false")
    monkeypatch.setenv("CODECARBON_PUE", "2")
    with EnergyMeter({"country": "DEU", "interval": 0.5}, path=tmp_path / "energy.json") as meter:
        with meter.phase("train", 1):
            work(1.5)
            meter.add_items(100)
        with meter.phase("eval", 1):
            work(0.5)
    report = meter.report()
    assert {part.name for part in report.components} >= {"cpu", "ram"} and not report.alarms.get("failure")
    assert report.seconds("train") == pytest.approx(1.5, abs=0.3) and report.seconds("eval") > 0.45
    watts = report.joules("train") / report.seconds("train")
    assert 1 < watts < 2000 and report.joules("train") > report.joules("eval") > 0
    assert report.joules("train", component="ram") > 0
    assert report.location == "Germany" and report.tracker.startswith("CodeCarbon ")
    assert os.listdir(tmp_path) == ["energy.json"]
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_components_say_how_they_are_known(no_network):
    machine = Tracker(EnergyOptions(ram_watts=3, cpu_watts=50), "here")
    process = Tracker(EnergyOptions(scope="process", cpu_watts=50), "here")
    try:
        cpu, ram = (part for part in machine.components if part.name != "gpu")
        assert (cpu.method, cpu.detail, cpu.scope) == ("load", "50 W · (0.1 + 0.9 · load³)", "machine")
        assert (ram.method, ram.detail) == ("constant", "3 W, as given by the user")
        assert machine.things["cpu"] == "here" and machine.cpu_watts == 50
        cpu, ram = (part for part in process.components if part.name != "gpu")
        assert (cpu.method, cpu.scope) == ("load", "process") and "share of the processor time" in cpu.detail
        assert (ram.method, ram.scope) == ("constant", "process") and "at least 10 W" in ram.detail
        assert str(os.getpid()) in process.things["cpu"] and process.things["ram"] == "here"
    finally:
        machine.stop()
        process.stop()


def test_a_stale_lock_is_no_hindrance(tmp_path, monkeypatch):
    from codecarbon import lock

    monkeypatch.setattr(lock, "LOCKFILE", str(tmp_path / ".codecarbon.lock"))
    Path(lock.LOCKFILE).touch()
    tracker = Tracker(EnergyOptions(), "here")
    assert tracker.read()["ram"] >= 0
    tracker.stop()


@pytest.mark.parametrize(
    ("mode", "scope", "method", "known_scope"),
    [
        ("intel_rapl", "process", "measured", "machine"),  # counters are the machine's, whatever was asked for
        ("intel_rapl", "machine", "measured", "machine"),
        ("constant", "machine", "constant", "machine"),
        ("cpu_load", "machine", "load", "machine"),
        ("cpu_load", "process", "load", "process"),
    ],
)
def test_constant_is_never_called_measured(mode, scope, method, known_scope):
    cpu = type("CPU", (), {"_mode": mode, "_tdp": 85, "_tracking_mode": scope})()
    component, _ = _describe(cpu)
    assert (component.name, component.method, component.scope) == ("cpu", method, known_scope)


@pytest.mark.parametrize(("sampled", "detail"), [(True, "power sampled each second"), (False, "counters")])
def test_gpus_are_devices_of_nobody_in_particular(sampled, detail):
    device = type("Device", (), {"_use_power_fallback": sampled})()
    gpu = type("GPU", (), {"devices": type("All", (), {"devices": [device]})()})()
    component, _ = _describe(gpu)
    assert (component.name, component.method, component.detail) == ("gpu", "measured", detail)
    assert component.scope == "devices"


def test_without_codecarbon_there_is_one_plain_line(monkeypatch):
    original = builtins.__import__

    def refuse(name, *rest, **more):
        if name.partition(".")[0] == "codecarbon":
            raise ImportError("No module named 'codecarbon'")
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TrackerUnavailable) as error:
        Tracker(EnergyOptions(), "here")
    assert str(error.value) == (
        "energy is not measured, only time: codecarbon can't be imported (No module named 'codecarbon'). "
        "pip install 'hf-efficient[energy]' brings it."
    )


def test_a_codecarbon_that_fails_is_quoted(monkeypatch):
    def explode(self):
        raise OSError("the sensors are gone")

    from codecarbon.emissions_tracker import BaseEmissionsTracker

    monkeypatch.setattr(BaseEmissionsTracker, "_ensure_hardware_ready", explode)
    with pytest.raises(TrackerUnavailable, match="failed: OSError: the sensors are gone"):
        Tracker(EnergyOptions(), "here")


def test_codecarbons_logger_is_left_as_it_was():
    import codecarbon  # noqa: F401

    logger = logging.getLogger("codecarbon")
    before = logger.handlers[:], logger.level
    tracker = Tracker(EnergyOptions(), "here")
    tracker.read()
    tracker.stop()
    assert (logger.handlers, logger.level) == before
