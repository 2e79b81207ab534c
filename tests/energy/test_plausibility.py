import os

import pytest
from energy_cases import COMPONENTS

from hf_efficient.energy.machine import Limits, Load, RaplCounters, find_limits, machine_id
from hf_efficient.energy.plausibility import Facts, find_alarms
from hf_efficient.energy.report import Component

MEASURED_CPU = Component("cpu", "measured", "RAPL", "machine")
CONSTANT_CPU = Component("cpu", "constant", "half of 85 W", "machine")
GPU = Component("gpu", "measured", "counters", "devices")
RAM = COMPONENTS[1]


def facts(**changes) -> Facts:
    """Nothing to complain about."""
    plain = {
        "joules": {"cpu": 1000.0, "gpu": 0.0, "ram": 100.0},
        "seconds": 10.0,
        "components": (MEASURED_CPU, RAM),
        "threads": 16,
        "memory_gb": 32.0,
    }
    return Facts(**{**plain, **changes})


def test_a_plain_measurement_raises_none():
    assert find_alarms(facts()) == {}
    gpu = facts(
        joules={"cpu": 900.0, "gpu": 3000.0, "ram": 100.0}, components=(MEASURED_CPU, GPU, RAM), accelerator="cuda"
    )
    assert find_alarms(gpu) == {}


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"accelerator": "cuda"}, "gpu-missing", "ran on cuda"),
        (
            {
                "joules": {"cpu": 1e4, "gpu": 50.0, "ram": 100.0},
                "components": (MEASURED_CPU, GPU, RAM),
                "accelerator": "cuda",
            },
            "ram-above-gpu",
            "10 W) than the GPU that computed (5 W)",
        ),
        ({"joules": {"cpu": 10.0, "gpu": 0.0, "ram": 100.0}}, "ram-share", "91% of the energy"),
        ({"joules": {"cpu": 1e4, "gpu": 0.0, "ram": 3780.0}, "memory_gb": 32.0}, "ram-watts", "378 W for 32 GB"),
        (
            {"joules": {"cpu": 1e4, "gpu": 0.0, "ram": 380.0}, "memory_gb": 1000.0, "limits": Limits(None, 16.0)},
            "ram-watts",
            "The machine has 1e+03 GB, and all are counted",
        ),
        ({"components": (CONSTANT_CPU, RAM)}, "cpu-constant", "constant 100 W"),
        ({"components": COMPONENTS, "cpu_watts": 85.0}, "cpu-unknown", "85 W"),
        ({"components": COMPONENTS, "cpu_watts": 64.0}, "cpu-unknown", "64 W"),  # 4 W for each of 16 threads
        ({"components": COMPONENTS, "cpu_watts": 225.0, "threads": 2}, "cpu-whole", "only 2 threads"),
        ({"components": COMPONENTS, "cpu_watts": 100.0, "rapl_locked": True}, "rapl-locked", "chmod"),
        ({"rapl_joules": 500.0}, "rapl-differs", "differ by 100%"),
        ({"limits": Limits(4.0, None)}, "cpu-limit", "4 of 16 processors"),
        ({"limits": Limits(None, 8.0)}, "ram-limit", "8 of 32 GB"),
        ({"others": 0.5}, "others", "50% of the machine's processor time"),
        ({"gap": 3.0}, "gap", "3 s nothing was read"),
        ({"failure": "no wire"}, "failure", "no wire"),
    ],
)
def test_alarms(changes, name, words):
    alarms = find_alarms(facts(**changes))
    assert words in alarms[name]


@pytest.mark.parametrize(
    "changes",
    [
        {"components": COMPONENTS, "cpu_watts": 85.0, "cpu_watts_given": True},
        {"rapl_joules": 950.0},
        {"others": 0.1},
        {"scope": "process", "others": 0.9, "limits": Limits(4.0, None)},
        {"rapl_locked": True},
    ],
)
def test_no_alarm_without_reason(changes):
    assert find_alarms(facts(**changes)) == {}


def make_domain(root, folder: str, name: str, energy: int, largest: int = 1_000_000_000):
    domain = root / folder
    domain.mkdir(parents=True, exist_ok=True)
    for file, value in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", largest)):
        (domain / file).write_text(f"{value}\n")
    return domain


def test_raw_counters_count_each_package_once(tmp_path):
    first = make_domain(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    make_domain(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    make_domain(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    second = make_domain(tmp_path, "intel-rapl:1", "package-1", 999_000_000)
    make_domain(tmp_path, "intel-rapl:2", "package-2", 5_000_100)  # a view of the first
    counters = RaplCounters(tmp_path)
    assert counters and counters.read() == 0
    (first / "energy_uj").write_text("9000000")
    (second / "energy_uj").write_text("2000000")  # it wrapped
    assert counters.read() == pytest.approx(4 + 3)
    (first / "energy_uj").write_text("19000000")
    counters.skip()
    assert counters.read() == pytest.approx(7)


def test_no_counters(tmp_path):
    counters = RaplCounters(tmp_path / "none")
    assert not counters and counters.read() is None and not counters.locked


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_locked_counters_are_seen(tmp_path):
    (make_domain(tmp_path, "intel-rapl:0", "package-0", 5) / "energy_uj").chmod(0)
    assert RaplCounters(tmp_path).locked


@pytest.mark.parametrize(
    ("cgroup", "files", "limits"),
    [
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": "8589934592"}, (1.5, 8.0)),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, (None, None)),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "90000 100000"}, (0.5, None)),
        (
            "3:cpu:/x\n2:memory:/x\n",
            {
                "cpu/x/cpu.cfs_quota_us": "200000",
                "cpu/x/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "4294967296",
                "memory/x/memory.limit_in_bytes": "9223372036854771712",
            },
            (2.0, 4.0),
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, (None, None)),
    ],
)
def test_limits_of_containers(tmp_path, monkeypatch, cgroup, files, limits):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(os.cpu_count())), raising=False)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        file = tmp_path / "cgroups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert find_limits(tmp_path / "cgroups", tmp_path / "proc") == limits


def test_machine_id_is_stable():
    assert machine_id() == machine_id() != ""


def test_load_knows_ones_own_work():
    load = Load()
    assert load.others is None
    load.machine, load.own = 10.0, 4.0
    assert load.others == pytest.approx(0.6)
    load.own = 12.0  # clocks differ a little
    assert load.others == 0
    load.read()
    assert load.own >= 12.0
