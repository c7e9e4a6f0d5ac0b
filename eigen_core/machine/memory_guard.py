"""The memory guard of a run: watches memory, frees caches, and aborts a phase before the system kills the process."""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

from eigen_core.common.errors import End
from eigen_core.common.progress import checked_by
from eigen_core.common.text import percent
from eigen_core.config.model import MemoryConfig
from eigen_core.machine.allocation import empty_device_cache, is_out_of_memory, keep_reserve
from eigen_core.machine.limits import DeviceLimit, HostLimit, Limit, Pressure
from eigen_core.machine.memory_report import MemoryReport, Row, measured_parts
from eigen_core.machine.memory_usage import (
    PhaseUsage,
    SystemMeter,
    Usage,
    expected_growth,
    gpu_in_use,
    memory_of_others,
    own_resident_bytes,
    release_free_memory,
)

logger = logging.getLogger(__name__)

# The soft line can be crossed again once the memory was below it by this share of the limit.
_REARM = 0.02
_PHASES_KEPT = 256


class MemoryGuardError(RuntimeError):
    """Memory would not suffice for `phase` of `generation` (outside of phases: "" and None); a retry does not help."""

    end = End.GUARD

    def __init__(self, message: str, report: MemoryReport, phase: str, generation: int | None) -> None:
        super().__init__(message)
        self.report = report
        self.phase = phase
        self.generation = generation

    def __reduce__(self) -> tuple[type[Self], tuple[str, MemoryReport, str, int | None]]:
        return type(self), (str(self), self.report, self.phase, self.generation)


class MemoryGuard:
    """Watches the memory of a run; a context manager.

    A thread reads the memory every `memory.sample_seconds`. At the soft line, the share `memory.soft` of a limit, it
    frees caches, once for each crossing. At the hard line (`memory.hard`), the next `check`, which every loop that
    reports progress calls between its steps (`eigen_core.common.progress`), aborts the phase; a phase without steps is
    aborted at its end. An allocation that fails inside a phase aborts it in the same way.

    `limits` are those of the host, the smallest first. Without `watch` no thread reads the memory, only the methods do.
    """

    def __init__(
        self,
        limits: Sequence[HostLimit],
        memory: MemoryConfig,
        *,
        device_limit: DeviceLimit | None = None,
        meter: SystemMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
        watch: bool = True,
    ) -> None:
        self.limits = limits
        self.device_limit = device_limit
        self._memory = memory
        self._meter = meter or SystemMeter(limits, device_limit.device if device_limit else None)
        self._clock = clock
        self._watched = watch
        self._began = clock()
        self._last_reading = -float("inf")
        self._children = 0
        self._ended: deque[PhaseUsage] = deque(maxlen=_PHASES_KEPT)
        self._open: PhaseUsage | None = None
        self._before = 0
        self._owners: Callable[[], Mapping[str, object]] = dict
        self._plan: tuple[Row, ...] = ()
        self._planned: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._above_soft = False
        self._crossed: Pressure | None = None
        self._failure: MemoryReport | None = None
        self._state_lock = threading.Lock()
        self._report_lock = threading.RLock()
        self._stop = threading.Event()
        self._exits = ExitStack()
        self._free_reserve: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._before = self._before or own_resident_bytes()
        self.sample()
        with ExitStack() as exits:
            self._free_reserve = keep_reserve(self.limits)
            exits.callback(self._free_reserve)
            exits.enter_context(checked_by(self.check))
            if self._watched:
                self._stop.clear()
                watcher = threading.Thread(target=self._watch, name="memory-guard", daemon=True)
                watcher.start()
                exits.callback(watcher.join)
                exits.callback(self._stop.set)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._exits.close()

    def _watch(self) -> None:
        while not self._stop.wait(self._memory.sample_seconds):
            # Where no memory is left, an allocation of the phase fails too and aborts it.
            with suppress(MemoryError):
                self.sample()

    def set_owners(self, owners: Callable[[], Mapping[str, object]]) -> None:
        """Set a function that returns objects that may hold much memory, by name; it must not keep them alive."""
        self._owners = owners

    def set_plan(
        self,
        rows: Sequence[Row],
        host_bytes: Mapping[str, int] | None = None,
        device_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Set the predicted memory of the run: a table of `rows` for reports, and each phase's peak on host and device.

        A phase whose peak would not stay below the hard line then does not begin.
        """
        self._plan = tuple(dict(row) for row in rows)
        self._planned = (dict(host_bytes or {}), dict(device_bytes or {}))

    @property
    def phases(self) -> tuple[PhaseUsage, ...]:
        """Memory of the newest finished phases, in order, with each attempt of a phase."""
        return tuple(self._ended)

    def sample(self) -> Usage:
        """Read the memory, from any thread; above the soft line free caches, above the hard line let `check` abort."""
        usage, pressure, crossed_soft = self._read()
        if crossed_soft:
            self._free()
            usage, left, _ = self._read()
            logger.warning("Memory: %s in use. Caches were freed; now %s.", pressure, left)
            pressure = left
        if pressure.share >= self._memory.hard and self._crossed is None:
            self._crossed = pressure
            logger.error("Memory: %s in use, above the hard line: the current phase is aborted.", pressure)
        return usage

    def pressure(self) -> Pressure:
        """Read the memory now; return the use of the limit that is nearest to being reached."""
        return self._pressure(self.sample())

    def _read(self) -> tuple[Usage, Pressure, bool]:
        with self._state_lock:
            usage = self._meter.read()
            self._last_reading, self._children = self._clock(), usage.children
            if self._open is not None:
                self._open.note(self._last_reading - self._began, usage)
            pressure = self._pressure(usage)
            crossed_soft = pressure.share >= self._memory.soft and not self._above_soft
            self._above_soft = crossed_soft or (self._above_soft and pressure.share >= self._memory.soft - _REARM)
        return usage, pressure, crossed_soft

    def _pressures(self, usage: Usage, more_host: int = 0, more_device: int = 0) -> tuple[Pressure, ...]:
        """Return the use of each limit if this many more bytes were allocated on host and device."""
        counted: list[tuple[Limit, int]] = [
            (limit, count + more_host) for limit, count in zip(self.limits, usage.counted, strict=True)
        ]
        if self.device_limit is not None:
            counted.append((self.device_limit, (usage.device.counted if usage.device else 0) + more_device))
        return tuple([Pressure.on(limit, count, self._memory) for limit, count in counted])

    def _pressure(self, usage: Usage, more_host: int = 0, more_device: int = 0) -> Pressure:
        return max(self._pressures(usage, more_host, more_device), key=lambda pressure: pressure.share)

    def _free(self) -> None:
        gc.collect()
        if gpu_in_use():
            empty_device_cache()
        release_free_memory()

    def check(self) -> None:
        """Raise `MemoryGuardError` if memory crossed the hard line; read it first if not read in `sample_seconds`."""
        if self._crossed is None and self._clock() - self._last_reading >= self._memory.sample_seconds:
            self.sample()
        if self._crossed is not None:
            raise self._error(f"{self._crossed} in use, above the hard line of {percent(self._memory.hard, 0)}")

    @contextmanager
    def phase(self, name: str, generation: int) -> Iterator[None]:
        """Run the block as a phase of a generation; abort it if the memory does not suffice. Phases must not overlap.

        Its memory is in `phases` afterwards, whether it failed or not. Earlier crossings of the hard line are ignored.
        `MemoryGuardError` if by the plan or by earlier phases of its name it would not fit, if memory is above the hard
        line at its start, between two steps or at its end, or if an allocation failed.
        """
        record = self._begin(name, generation)
        try:
            self.check()
            self._admit(name)
            with self.out_of_memory_reported():
                yield
            self.sample()
            self.check()
        finally:
            self._end(record)

    def _begin(self, name: str, generation: int) -> PhaseUsage:
        self._crossed, self._failure = None, None
        self._meter.reset_peaks()
        usage = self.sample()
        record = PhaseUsage.begin(name, generation, self._clock() - self._began, usage)
        with self._state_lock:
            self._open = record
        return record

    def _end(self, record: PhaseUsage) -> None:
        self.sample()
        # The system's peaks include those between two readings.
        own, device = self._meter.peaks()
        with self._state_lock:
            record.note_peaks(own + self._children, device)
            self._open = None
            self._ended.append(record)

    @contextmanager
    def out_of_memory_reported(self) -> Iterator[None]:
        """Turn an allocation that fails inside the block into a `MemoryGuardError`."""
        try:
            yield
        except (MemoryError, OSError, RuntimeError) as error:
            if isinstance(error, MemoryGuardError) or not is_out_of_memory(error):
                raise
            words = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            raise self._error(f"an allocation failed ({words})") from error

    def _admit(self, phase: str) -> None:
        """Refuse a phase whose peak will not stay below the hard line, even after caches are freed."""
        if self._predicted(phase).share < self._memory.hard:
            return
        self._free()
        predicted = self._predicted(phase)
        if predicted.share >= self._memory.hard:
            raise self._error(
                f"{phase} was not started: at its predicted peak {predicted} would be in use, above the hard line of "
                f"{percent(self._memory.hard, 0)},"
            )

    def _predicted(self, phase: str) -> Pressure:
        """Return the use of a limit at the peak of a phase: by the plan, or by its latest runs if these needed more."""
        usage = self.sample()
        host, device = (planned.get(phase, 0) for planned in self._planned)
        growth, device_growth = expected_growth(self._ended, phase)
        held = usage.device.allocated if usage.device else 0
        return self._pressure(
            usage, max(growth, host - usage.host, 0), max(device_growth, device - held if device else 0, 0)
        )

    def report(self, reason: str) -> MemoryReport:
        """Report on the memory now and its history; any thread may call it. `reason`: as in `MemoryReport`."""
        usage, pressure, _ = self._read()
        with self._state_lock:
            under_way = () if self._open is None else (replace(self._open),)
            phases = (*self._ended, *under_way)
        pressures = self._pressures(usage)
        limits = self.limits if self.device_limit is None else (*self.limits, self.device_limit)
        others, largest = memory_of_others(limits[pressures.index(pressure)], pressure.counted, usage)
        report = MemoryReport(
            moment=datetime.now(UTC).isoformat(timespec="seconds"),
            reason=reason,
            nearest=str(pressure),
            usage=usage,
            own=pressure.counted - others,
            others=others,
            largest_others=largest,
            limits=pressures,
            phases=phases,
            plan=self._plan,
        )
        with self._report_lock:
            parts, tensors = measured_parts(usage, self._before, self._owners())
            return replace(report, parts=parts, tensors=tensors)

    def _error(self, reason: str) -> MemoryGuardError:
        self._free_reserve()
        phase, generation = "", None
        if self._open is not None:
            phase, generation = self._open.phase, self._open.generation
            reason += f" in {phase} of generation {generation}"
        with self._report_lock:
            # Several threads may raise for the same crossing: they share one report.
            if self._failure is None:
                self._failure = self.report(reason)
            return MemoryGuardError(f"memory: {reason}. {self._failure.headline}", self._failure, phase, generation)
