"""A tracker that draws constant watts by a clock of its own, and reports made of it."""

from hf_efficient.energy.report import Component, EnergyReport, Row
from hf_efficient.energy.tracker import TrackerUnavailable

WATTS = {"cpu": 10.0, "gpu": 0.0, "ram": 5.0}
COMPONENTS = (
    Component("cpu", "load", "20 W · (0.1 + 0.9 · load³)", "machine"),
    Component("ram", "constant", "5 W, guessed from the size of the machine's memory", "machine"),
)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class FakeTracker:
    name, hardware = "FakeTracker 1", "2 threads of a fake"
    components, cpu_watts, threads, sockets, memory_gb = COMPONENTS, 20.0, 2, 1, 16.0

    def __init__(self, clock: Clock, watts: dict[str, float] | None = None, machine: str = "here"):
        self.clock, self.watts, self.began = clock, watts or WATTS, clock()
        self.things = {part.name: machine for part in self.components}
        self.broken = self.stopped = False

    def read(self):
        if self.broken:
            raise TrackerUnavailable("the wire is cut")
        return {name: watts * (self.clock() - self.began) for name, watts in self.watts.items()}

    def stop(self):
        self.stopped = True


def make_report(**changes) -> EnergyReport:
    rows = (
        Row("train", 1, 0, seconds=10.0, cpu=100.0, ram=50.0, items=1000),
        Row("eval", 1, 0, seconds=2.0, cpu=20.0, ram=10.0, items=100),
        Row("train", 2, 0, seconds=10.0, cpu=110.0, ram=50.0, items=1000),
        Row("inference", 0, 0, seconds=1.0, cpu=8.0, ram=5.0, items=50),
    )
    fields = {
        "run": "abc",
        "rows": rows,
        "components": COMPONENTS,
        "tracker": "FakeTracker 1",
        "hardware": "2 threads of a fake",
        "country": "DEU",
        "location": "Germany",
        "grams_per_kwh": 360.0,
        "grid": "a table",
        "finished": True,
    }
    return EnergyReport(**{**fields, **changes})
