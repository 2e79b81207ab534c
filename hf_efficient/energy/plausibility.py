"""Checks for implausible energies. Each case has happened to somebody."""

from dataclasses import dataclass, field

from .machine import Limits
from .report import Component

DISAGREEMENT = 0.10  # between the tracker and the raw counters
OTHERS = 0.20  # of the machine's work
RAM_WATTS_PER_GB = 1.0  # DDR4 and DDR5 draw 0.1 to 0.5 under load
UNKNOWN_CPU = 85.0  # W: what codecarbon takes for a processor of which it knows nothing ...
UNKNOWN_THREAD = 4.0  # ... and for each thread of one that is not in its table
WATTS_PER_THREAD = 20.0  # few processors draw more


@dataclass(frozen=True)
class Facts:
    """
    Args:
        joules: by component, counted so far, over `seconds`.
        components: how each is known.
        scope: "machine" or "process".
        accelerator: torch's name of the device that computes: "cpu", "cuda", ...
        cpu_watts: the thermal design power that estimates start from, `cpu_watts_given` if the user gave it.
        threads, sockets, memory_gb, virtual: of the machine.
        limits: of the container.
        rapl_joules: of the raw counters in the same time; None without.
        rapl_locked: whether counters are there that may not be read.
        others: share of the machine's work that was not this run's.
        gap: seconds for which nothing was read, beyond what was asked for.
        failure: what the tracker failed at.
    """

    joules: dict[str, float]
    seconds: float
    components: tuple[Component, ...]
    scope: str = "machine"
    accelerator: str = "cpu"
    cpu_watts: float | None = None
    cpu_watts_given: bool = False
    threads: int = 1
    sockets: int = 1
    memory_gb: float = 0.0
    virtual: bool = False
    limits: Limits = field(default=Limits(None, None))
    rapl_joules: float | None = None
    rapl_locked: bool = False
    others: float | None = None
    gap: float = 0.0
    failure: str | None = None

    def watts(self, component: str) -> float:
        return self.joules.get(component, 0.0) / self.seconds if self.seconds else 0.0

    def method(self, component: str) -> str | None:
        return next((part.method for part in self.components if part.name == component), None)


def find_alarms(facts: Facts) -> dict[str, str]:
    """What is alarming, by a short name."""
    alarms: dict[str, str] = {}
    for check in (_check_gpu, _check_ram, _check_cpu, _check_counters, _check_sharing, _check_readings):
        check(facts, alarms)
    return alarms


def _check_gpu(facts: Facts, alarms: dict[str, str]) -> None:
    if facts.accelerator == "cpu" or not facts.seconds:
        return
    if not facts.joules.get("gpu"):
        alarms["gpu-missing"] = (
            f"it ran on {facts.accelerator}, but no energy of a GPU was measured: the sums leave it out."
        )
    elif facts.joules["ram"] > facts.joules["gpu"]:
        alarms["ram-above-gpu"] = (
            f"the memory is said to have drawn more ({facts.watts('ram'):.3g} W) than the GPU that computed "
            f"({facts.watts('gpu'):.3g} W): the memory's share is a guess from the machine's size."
        )


def _check_ram(facts: Facts, alarms: dict[str, str]) -> None:
    watts, total = facts.watts("ram"), sum(facts.joules.values())
    if facts.method("ram") == "measured" or not total:
        return
    if facts.joules["ram"] > total / 2:
        alarms["ram-share"] = (
            f"{facts.joules['ram'] / total:.0%} of the energy is the memory's, {watts:.3g} W that are guessed from "
            "its size and that no work changes: ratios of such sums are mostly ratios of time. Set energy.ram_watts "
            "if you know better."
        )
    usable = min(facts.memory_gb, facts.limits.memory_gb or facts.memory_gb)
    if usable and watts > RAM_WATTS_PER_GB * usable:
        machine = f" The machine has {facts.memory_gb:.3g} GB, and all are counted." * (usable < facts.memory_gb)
        alarms["ram-watts"] = (
            f"{watts:.3g} W for {usable:.3g} GB of memory is implausible: 0.1 to 0.5 W per GB are usual.{machine}"
        )


def _check_cpu(facts: Facts, alarms: dict[str, str]) -> None:
    method, watts = facts.method("cpu"), facts.cpu_watts
    if method == "constant":
        alarms["cpu-constant"] = (
            f"the processor's energy is a constant {facts.watts('cpu'):.3g} W: it knows nothing of the work done."
        )
    if facts.rapl_locked and method != "measured":
        alarms["rapl-locked"] = (
            "the processor has energy counters, but this user may not read them; after "
            "`sudo chmod -R a+r /sys/class/powercap/intel-rapl*` its energy would be measured."
        )
    if method not in ("load", "constant") or watts is None or facts.cpu_watts_given:
        return
    if watts in (UNKNOWN_CPU, UNKNOWN_THREAD * facts.threads * facts.sockets):
        where = "virtual machine" if facts.virtual else "container or machine"
        alarms["cpu-unknown"] = (
            f"{watts:g} W is what codecarbon takes for a processor that it doesn't know, as in this {where}: the "
            "absolute energy means little. Set energy.cpu_watts if you know the share that is yours."
        )
    elif watts > WATTS_PER_THREAD * facts.threads:
        alarms["cpu-whole"] = (
            f"{watts:g} W is the thermal design power of a whole processor, of which only {facts.threads} threads "
            "are here: what others do on it, or nobody does, is counted too. Set energy.cpu_watts to your share."
        )


def _check_counters(facts: Facts, alarms: dict[str, str]) -> None:
    machine = all(part.scope == "machine" for part in facts.components if part.name == "cpu")
    if not facts.rapl_joules or not machine:
        return
    cpu = facts.joules.get("cpu", 0.0)
    difference = abs(cpu / facts.rapl_joules - 1)
    if difference > DISAGREEMENT:
        alarms["rapl-differs"] = (
            f"the tracker's {cpu:.4g} J of the processor differ by {difference:.0%} from the "
            f"{facts.rapl_joules:.4g} J that its own counters (RAPL) went on by."
        )


def _check_sharing(facts: Facts, alarms: dict[str, str]) -> None:
    cpus, memory_gb = facts.limits
    if facts.scope != "machine":
        return
    if cpus is not None and cpus < facts.threads:
        alarms["cpu-limit"] = (
            f"this container may use {cpus:.3g} of {facts.threads} processors, but the energy is the whole "
            "machine's. energy.scope=process counts this run's share of the load."
        )
    if memory_gb is not None and memory_gb < 0.9 * facts.memory_gb:
        alarms["ram-limit"] = (
            f"this container may use {memory_gb:.3g} of {facts.memory_gb:.3g} GB of memory, but the power of all of "
            "it is counted. energy.ram_watts can say what your share is."
        )
    if facts.others is not None and facts.others > OTHERS:
        alarms["others"] = (
            f"about {facts.others:.0%} of the machine's processor time went to others than this run, and their "
            "energy is counted here. energy.scope=process leaves it out where it is estimated from load."
        )


def _check_readings(facts: Facts, alarms: dict[str, str]) -> None:
    if facts.failure:
        alarms["failure"] = f"the tracker failed: {facts.failure}"
    if facts.gap > 0.02 * facts.seconds:
        alarms["gap"] = (
            f"for {facts.gap:.3g} s nothing was read, as if the process had been paused: what the machine did "
            "meanwhile is counted all the same."
        )
