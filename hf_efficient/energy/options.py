"""What a run may say about its energy: the `energy` section of a YAML."""

import math
from dataclasses import asdict, dataclass, fields

from .carbon import Grid, find_grid

SCOPES = ("machine", "process")
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class EnergyOptions:
    """
    Args:
        enabled: whether to measure at all.
        country: where the electricity comes from, as a three-letter ISO code ("DEU"). Without one, CO2e is reckoned
            with the world's average, and the report says so.
        carbon_intensity: g CO2e per kWh, instead of the country's average.
        scope: "machine" counts all that the machine does, "process" this run's share of the CPU's load. What is
            measured by counters (RAPL, GPUs) is the machine's in either case.
        interval: seconds between two readings; what kill -9 can lose at most.
        idle_seconds: how long to measure the idle machine before training, for net energies; 0 = don't.
        budget_kwh, budget_joules: training stops, with a checkpoint, when so much has been spent; one of the two.
        cpu_watts: the processors' thermal design power, where codecarbon doesn't know them. Energy is then estimated
            from load even if there are counters.
        ram_watts: what the memory draws, if known: 5 W per module is codecarbon's guess.
    """

    enabled: bool = True
    country: str | None = None
    carbon_intensity: float | None = None
    scope: str = "machine"
    interval: float = 5.0
    idle_seconds: float = 0.0
    budget_kwh: float | None = None
    budget_joules: float | None = None
    cpu_watts: float | None = None
    ram_watts: float | None = None

    def __post_init__(self):
        if not isinstance(self.enabled, bool):
            raise ValueError(f"energy.enabled={self.enabled!r} must be true or false.")
        if self.scope not in SCOPES:
            raise ValueError(f"energy.scope={self.scope!r} must be one of {', '.join(SCOPES)}.")
        for name in ("interval", "budget_kwh", "budget_joules", "cpu_watts", "ram_watts"):
            self._check_number(name, "more than 0", lambda value: 0 < value < math.inf)
        for name in ("idle_seconds", "carbon_intensity"):
            self._check_number(name, "at least 0", lambda value: 0 <= value < math.inf)
        if self.budget_kwh is not None and self.budget_joules is not None:
            raise ValueError(
                f"energy.budget_kwh={self.budget_kwh} and energy.budget_joules={self.budget_joules}: give one of them."
            )
        if self.country is not None and not isinstance(self.country, str):
            raise ValueError(f"energy.country={self.country!r} must be a three-letter ISO code such as 'DEU'.")
        self.grid  # noqa: B018  (a country that doesn't exist is an error now, not after training)

    def _check_number(self, name: str, range: str, fits) -> None:
        value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
        if value is None and default is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits(value):
            raise ValueError(f"energy.{name}={value!r} must be a number, {range}.")

    @classmethod
    def of(cls, section: "EnergyOptions | dict | None") -> "EnergyOptions":
        """The options themselves, or those that a YAML's section gives."""
        if isinstance(section, cls):
            return section
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(section or {}) - set(known)):
            raise ValueError(f"energy has no key {', '.join(map(repr, unknown))}. Its keys are {', '.join(known)}.")
        return cls(**(section or {}))

    @property
    def grid(self) -> Grid:
        return find_grid(self.country, self.carbon_intensity)

    @property
    def budget(self) -> float | None:
        """In joules."""
        return self.budget_joules if self.budget_kwh is None else self.budget_kwh * JOULES_PER_KWH

    def to_dict(self) -> dict:
        return asdict(self)
