"""EnergyMeter: reads a tracker in the background and books what it reads to phases and epochs.

Readings are taken by a thread every few seconds, and where one phase gives way to another; a training step is never
held up by one. Each reading is written to a file, so that a killed run loses one interval at most.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from transformers.utils import logging

from .machine import Load, RaplCounters, find_limits, is_virtual, machine_id
from .options import EnergyOptions
from .plausibility import Facts, find_alarms
from .report import COMPONENTS, PHASES, TRAINING, Baseline, EnergyReport, Row
from .tracker import Tracker, TrackerUnavailable

logger = logging.get_logger(__name__)
PAUSED = 3  # intervals without a reading
SETTLED = 0.5  # seconds after which an average power means something


class EnergyMeter:
    """Measures what happens between `start` and `stop`, in the phase that was entered last.

        with EnergyMeter({"country": "DEU"}) as meter:
            with meter.phase("inference"):
                classify(images)
                meter.add_items(len(images))
        print(meter.report().to_markdown())

    Args:
        options: EnergyOptions, or a dict of them.
        unit: what is counted, "image" or "token".
        rank: of this process.
        path: where each reading is written to; None = nowhere.
        accelerator: torch's name for the device that computes.
        alone: whether no other rank works on this machine.
        make_tracker, clock: for tests.

    Attributes:
        counts: the components that this rank books.
        others: reports of other ranks, as last heard of.
        absent: reports of ranks that an earlier process of the run had, and this one hasn't.
    """

    def __init__(
        self,
        options: EnergyOptions | dict | None = None,
        *,
        unit: str = "image",
        rank: int = 0,
        path: str | Path | None = None,
        accelerator: str = "cpu",
        alone: bool = True,
        make_tracker: Callable[[EnergyOptions, str], Tracker] = Tracker,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.options = EnergyOptions.of(options)
        self.rank, self.path, self.accelerator, self.alone = rank, path and Path(path), accelerator, alone
        self.counts = set(COMPONENTS)
        self.others: list[EnergyReport] = []
        self.absent: list[EnergyReport] = []
        self._make_tracker, self._clock = make_tracker, clock
        grid = self.options.grid
        self._record = EnergyReport(  # all but the rows, which grow
            run=uuid.uuid4().hex,
            unit=unit,
            scope=self.options.scope,
            country=grid.country,
            location=grid.name,
            grams_per_kwh=grid.grams_per_kwh,
            grid=grid.source,
            interval=self.options.interval,
            budget=self.options.budget,
        )
        self._rows: dict[tuple[str, int], Row] = {}
        self._key: tuple[str, int] | None = None  # the row that is booked to
        self._watts, self._booked, self._last_time = 0.0, 0.0, 0.0
        self._seen = dict.fromkeys(COMPONENTS, 0.0)  # joules read since the first start, booked or not
        self._watched, self._gap, self._rapl_joules = 0.0, 0.0, None
        self._rapl: RaplCounters | None = None
        self._load: Load | None = None
        self._old_alarms: dict[str, str] = {}  # of earlier processes
        self._failure: str | None = None
        self._tracker: Tracker | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._lock = threading.RLock()

    # Running

    @property
    def running(self) -> bool:
        return self._thread is not None

    @property
    def things(self) -> dict[str, str]:
        """What its tracker measures: component -> name of that thing."""
        return dict(self._tracker.things) if self._tracker else {}

    @property
    def current_phase(self) -> str | None:
        return self._key[0] if self._key else None

    def start(self) -> "EnergyMeter":
        """Begins to read; without codecarbon it says so once and takes the time alone."""
        if self.running or not self.options.enabled:
            return self
        if self._rapl is None:
            self._rapl, self._load = RaplCounters(), Load()
            self._virtual, self._limits = is_virtual(), find_limits()
        else:
            self._rapl.skip()
            self._load.skip()
        try:
            self._tracker = self._make_tracker(self.options, machine_id())
            self._describe_machine()
        except TrackerUnavailable as error:
            self._fail(str(error))
        self._last = self._read() or dict.fromkeys(COMPONENTS, 0.0)  # what starting took is nobody's
        self._last_time = self._clock()
        self._end.clear()
        self._thread = threading.Thread(target=self._run, name="energy meter", daemon=True)
        self._thread.start()
        return self

    def _describe_machine(self) -> None:
        tracker, before = self._tracker, self._record.hardware
        if before not in ("", tracker.hardware):
            self._old_alarms["moved"] = f"the run began on {before}; the methods named are those of the machine now."
        self._record = replace(
            self._record, components=tracker.components, tracker=tracker.name, hardware=tracker.hardware
        )

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            logger.warning(reason)
        self._failure = reason

    def _run(self) -> None:
        while not self._end.wait(self.options.interval):
            self.sample()
            self.save()

    def stop(self) -> None:
        """Takes the last reading and leaves the phase."""
        if not self.running:
            return
        self.leave()
        self._end.set()
        self._thread.join()
        with self._lock:
            self._thread = None
            if self._tracker is not None:
                self._record = replace(self._record, alarms=self._alarms())
                self._tracker.stop()
                self._tracker = None
        self.save()

    def __enter__(self) -> "EnergyMeter":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    # Reading and booking

    def _read(self) -> dict[str, float] | None:
        if self._tracker is None:
            return None
        try:
            return self._tracker.read()
        except Exception as error:  # a meter that breaks must not break the training that it watches
            self._fail(f"energy could not be read: {error}")
            return None

    def sample(self) -> None:
        """Reads the tracker and books what was added to the phase that is on."""
        with self._lock:
            if not self.running:
                return
            joules, now = self._read() or self._last, self._clock()
            seconds = now - self._last_time
            added = {name: joules[name] - self._last[name] for name in COMPONENTS}
            self._last, self._last_time = joules, now
            self._load.read()
            self._rapl_joules = self._rapl.read()
            self._watched += seconds
            self._seen = {name: self._seen[name] + added[name] for name in COMPONENTS}
            if seconds > PAUSED * self.options.interval + 1:
                self._gap += seconds - self.options.interval
            counted = {name: joule if name in self.counts else 0.0 for name, joule in added.items()}
            if seconds > SETTLED:
                self._watts = sum(counted.values()) / seconds
            if self._key is not None:
                self._book(seconds, counted)

    def _book(self, seconds: float, joules: dict[str, float]) -> None:
        row = self._rows[self._key]
        sums = {name: getattr(row, name) + joules[name] for name in COMPONENTS}
        self._rows[self._key] = replace(row, seconds=row.seconds + seconds, **sums)
        if row.phase in TRAINING:
            self._booked += sum(joules.values())

    def enter(self, phase: str, epoch: int = 0) -> None:
        """From now on, energy is booked to this phase of this epoch."""
        if phase not in PHASES:
            raise ValueError(f"phase={phase!r} must be one of {', '.join(PHASES)}.")
        with self._lock:
            if self._key != (phase, epoch):
                self.sample()
                self._key = (phase, epoch)
                self._rows.setdefault(self._key, Row(phase, epoch, self.rank))

    def leave(self) -> None:
        """From now on, energy is booked to nothing."""
        with self._lock:
            self.sample()
            self._key = None

    @contextmanager
    def phase(self, phase: str, epoch: int = 0) -> Iterator["EnergyMeter"]:
        """In this phase, then back in the one before."""
        before = self._key
        self.enter(phase, epoch)
        try:
            yield self
        finally:
            if before is None:
                self.leave()
            else:
                self.enter(*before)

    def add_items(self, number: float) -> None:
        """So many images or tokens, of all ranks together, have been worked on in the current phase."""
        with self._lock:
            if self._key is not None:
                row = self._rows[self._key]
                self._rows[self._key] = replace(row, items=row.items + number)

    def measure_idle(self, seconds: float) -> None:
        """Waits, and takes what the machine draws meanwhile for its baseline."""
        if self._tracker is None:
            return
        self.leave()
        before, began = dict(self._seen), self._clock()
        self._end.wait(seconds)
        self.sample()
        took = self._clock() - began
        watts = {name: (self._seen[name] - before[name]) / took for name in COMPONENTS}
        counted = {name: watt if name in self.counts else 0.0 for name, watt in watts.items()}
        self.note(baselines=(Baseline(self.rank, took, **counted),))

    @property
    def has_baseline(self) -> bool:
        return bool(self._record.baselines)

    @property
    def joules(self) -> float:
        """Booked by this rank to training and evaluation so far, and reckoned on since the last reading."""
        since = self._clock() - self._last_time if self._key and self.running else 0.0
        return self._booked + self._watts * since

    # Reporting

    def own_report(self) -> EnergyReport:
        """Of this rank alone."""
        with self._lock:
            return replace(self._record, rows=tuple(self._rows.values()), alarms=self._alarms())

    def report(self) -> EnergyReport:
        """Of all ranks, as far as they have been heard of."""
        return self.own_report().with_rows_of(self.others)

    def note(self, **changes) -> None:
        """Changes fields of the report, such as finished or stopped_by_budget."""
        with self._lock:
            self._record = replace(self._record, **changes)

    def _alarms(self) -> dict[str, str]:
        tracker = self._tracker
        if tracker is None:
            failure = {"failure": self._failure} if self._failure else {}
            return {**self._old_alarms, **self._record.alarms, **failure}
        facts = Facts(
            joules=self._seen,
            seconds=self._watched,
            components=tracker.components,
            scope=self.options.scope,
            accelerator=self.accelerator,
            cpu_watts=tracker.cpu_watts,
            cpu_watts_given=self.options.cpu_watts is not None,
            threads=tracker.threads,
            sockets=tracker.sockets,
            memory_gb=tracker.memory_gb,
            virtual=self._virtual,
            limits=self._limits,
            rapl_joules=self._rapl_joules,
            rapl_locked=self._rapl.locked,
            others=self._load.others if self.alone else None,
            gap=self._gap,
            failure=self._failure,
        )
        return {**self._old_alarms, **find_alarms(facts)}

    def save(self) -> None:
        """Writes the report to `path`; a full disk costs a warning, not the training."""
        if self.path is None:
            return
        with self._lock:
            try:
                (self.own_report() if self.rank else self.report()).save(self.path)
            except OSError as error:
                logger.warning_once(f"{self.path} could not be written: {error}")

    def resume(self, past: EnergyReport, lost: float = 0.0, ranks: int = 1) -> None:
        """Goes on from where an earlier process of the same run stood.

        Args:
            past: its report.
            lost: joules that went into work after the checkpoint that training goes on from.
            ranks: how many there are now; what missing ones had counted stays with rank 0.
        """
        with self._lock:
            own = [row for row in past.rows if row.rank == self.rank]
            self._rows = {(row.phase, row.epoch): row for row in own}
            self._booked = sum(row.joules for row in own if row.phase in TRAINING)
            self._old_alarms = dict(past.alarms)
            present = self._record
            self._record = replace(
                present,
                run=past.run,
                baselines=tuple(idle for idle in past.baselines if idle.rank == self.rank),
                components=past.components,
                tracker=past.tracker,
                hardware=past.hardware,
                restarts=past.restarts + 1,
                lost=past.lost + lost,
            )
            if self._tracker is not None:
                self._describe_machine()
            rows = tuple(row for row in past.rows if row.rank >= ranks)
            idle = tuple(idle for idle in past.baselines if idle.rank >= ranks)
            missing = replace(past, rows=rows, baselines=idle, lost=0.0, alarms={})
            self.absent = [missing] if rows and self.rank == 0 else []
            self.others = list(self.absent)
