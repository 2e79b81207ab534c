"""codecarbon's offline tracker, with nothing left to its defaults, environment variables or configuration files.

What codecarbon (3.3) knows of each component, and so what we say of it:

CPU    intel_rapl       measured   the packages' counters; the whole machine's, even where process scope is asked for
       windows_emi, intel_power_gadget, powermetrics    measured likewise
       cpu_load         load       machine: TDP · (0.1 + 0.9 · load³) of all that runs, sampled each second
                                   process: TDP · this process's (and its children's) share of the processor time
       constant         constant   half of the TDP
                                   TDP: from a table by the model's name; 4 W per thread, or 85 W, if it is not there
GPU    NVML, AMD SMI    measured   the devices' energy counters, or power sampled each second; whoever uses them
RAM                     constant   5 W (ARM 1.5 W) per module, whose number is guessed from the machine's gigabytes
                                   process: the same of the gigabytes used, at least 10 W

It is driven by its public calls: `start`, `flush`, which reads the hardware, and an output handler that is handed
the sums. Its own timer is set to never; readings come from one thread at a time, or some would count twice.
"""

import logging
import os
import tempfile

from .options import JOULES_PER_KWH, EnergyOptions
from .report import COMPONENTS, Component

NEVER = 1e9  # seconds
MEASURED_CPU = {"intel_rapl": "RAPL", "windows_emi": "Windows' energy meter", "intel_power_gadget": "Power Gadget"}


class TrackerUnavailable(Exception):
    """Why energy can't be measured, in one line."""


class _Complaints(logging.Handler):
    """Catches codecarbon's log lines and keeps the first error: codecarbon logs its exceptions instead of raising."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.error = ""

    def emit(self, record):
        if record.exc_info:
            self.error = f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
        elif record.levelno >= logging.ERROR and not self.error:
            self.error = record.getMessage()


class Tracker:
    """
    Attributes:
        components: how each component's energy is known.
        things: component -> a name of what is measured, the same for whoever measures the same on this machine.
        cpu_watts: the thermal design power that estimates start from; None where it is measured.
        threads, sockets, memory_gb: of the machine.
    """

    def __init__(self, options: EnergyOptions, machine: str):
        try:
            from codecarbon import OfflineEmissionsTracker, __version__
            from codecarbon.output_methods.base_output import BaseOutput
        except ImportError as error:
            raise TrackerUnavailable(
                f"energy is not measured, only time: codecarbon can't be imported ({error}). "
                "pip install 'hf-efficient[energy]' brings it."
            ) from error

        class Sink(BaseOutput):
            """What `flush` hands its sums to."""

            sums = None

            def out(self, total, delta):
                self.sums = total

        self.name = f"CodeCarbon {__version__}"
        self._sink, self._complaints = Sink(), _Complaints()
        with self._quiet():
            self._tracker = OfflineEmissionsTracker(
                country_iso_code=options.country,
                force_carbon_intensity_g_co2e_kwh=0.0,  # so that it asks nobody: CO2e is a product of the report's
                region=None,
                cloud_provider=None,
                cloud_region=None,
                country_2letter_iso_code=None,
                emissions_endpoint=None,
                electricitymaps_api_token=None,
                output_methods=[],
                output_handlers=[self._sink],
                output_dir=tempfile.gettempdir(),
                api_call_interval=-1,
                measure_power_secs=NEVER,
                tracking_mode=options.scope,
                force_cpu_power=options.cpu_watts,
                force_ram_power=options.ram_watts,
                force_mode_cpu_load=False,
                rapl_include_dram=False,
                rapl_prefer_psys=False,
                pue=1.0,
                wue=0.0,
                gpu_ids=None,
                allow_multiple_runs=True,  # no lock file that a killed run could leave behind
                log_level="warning",
                metadata=None,
            )
        try:
            with self._quiet():  # again, as codecarbon has just given its logger a new handler
                self._tracker.start()
            self.read()
        except Exception as error:  # whatever it is, training goes on without
            raise TrackerUnavailable(f"energy is not measured, only time: {self.name} failed: {error}") from error
        self._look_at_hardware(options, machine)

    def _look_at_hardware(self, options: EnergyOptions, machine: str) -> None:
        sums = self._sink.sums
        self.threads, self.memory_gb = int(sums.cpu_count or 1), float(sums.ram_total_size or 0.0)
        self.sockets = int(self._tracker._conf.get("cpu_physical_count") or 1)
        gpu = f", {sums.gpu_model}" if sums.gpu_model else ""
        model = sums.cpu_model or "an unknown processor"
        self.hardware = f"{self.threads} threads of {model}{gpu}, {self.memory_gb:.3g} GB of memory"

        parts = {component.name: (component, part) for component, part in map(_describe, self._tracker._hardware)}
        self.components = tuple(parts[name][0] for name in COMPONENTS if name in parts)
        self.things = {component.name: machine for component in self.components}
        self.cpu_watts = None
        if "cpu" in parts:
            component, cpu = parts["cpu"]
            self.cpu_watts = None if component.method == "measured" else cpu._tdp
            if component.scope == "process":
                self.things["cpu"] = f"{machine}, process {os.getpid()}"
        if devices := getattr(parts.get("gpu", (None, None))[1], "gpu_ids", None):
            self.things["gpu"] = f"{machine}, devices {sorted(map(str, devices))}"

    def _quiet(self):
        return _Quiet(self._complaints)

    def read(self) -> dict[str, float]:
        """Joules since the start, by component."""
        self._sink.sums = None
        with self._quiet():
            self._tracker.flush()
        sums = self._sink.sums
        if sums is None:
            raise TrackerUnavailable(self._complaints.error or "it gave no reading")
        return {name: getattr(sums, f"{name}_energy") * JOULES_PER_KWH for name in COMPONENTS}

    def stop(self) -> None:
        with self._quiet():
            self._tracker.stop()


class _Quiet:
    """Context in which codecarbon's log lines go to a handler of ours instead of the terminal."""

    def __init__(self, listener: logging.Handler):
        self.listener, self.logger = listener, logging.getLogger("codecarbon")

    def __enter__(self):
        self.before = self.logger.handlers[:], self.logger.level
        self.logger.handlers = [self.listener]
        self.logger.setLevel(logging.WARNING)

    def __exit__(self, *_):
        self.logger.handlers, level = self.before
        self.logger.setLevel(level)


def _describe(part) -> tuple[Component, object]:
    """One of codecarbon's hardware objects in our words, and the object."""
    kind, scope = type(part).__name__, getattr(part, "_tracking_mode", "machine")
    if kind in ("AppleSiliconChip", "Raspberry"):
        return Component(part.chip_part.lower(), "measured", f"{kind}'s own meter", "machine"), part
    if kind == "GPU":
        sampled = any(getattr(device, "_use_power_fallback", False) for device in part.devices.devices)
        return Component("gpu", "measured", "power sampled each second" if sampled else "counters", "devices"), part
    if kind == "RAM":
        size = "of the memory in use, at least 10 W" if scope == "process" else "of the machine's memory"
        source = f"guessed from the size {size}" if part._force_ram_power is None else "as given by the user"
        return Component("ram", "constant", f"{part.total_power().W:.3g} W, {source}", scope), part
    mode, watts = part._mode, part._tdp
    if mode in MEASURED_CPU:
        return Component("cpu", "measured", MEASURED_CPU[mode], "machine"), part
    if mode == "constant":
        return Component("cpu", "constant", f"half of {watts:g} W", "machine"), part
    if scope == "process":
        return Component("cpu", "load", f"{watts:g} W times this run's share of the processor time", scope), part
    return Component("cpu", "load", f"{watts:g} W · (0.1 + 0.9 · load³)", scope), part
