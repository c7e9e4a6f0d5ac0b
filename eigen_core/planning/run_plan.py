"""What a run will take on this machine, whether that fits, and the refusal of a run that does not."""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from eigen_core.config import Config
from eigen_core.generation import resolve_device
from eigen_core.memory import DeviceLimit, DeviceUsage, HostLimit, HostLimits, device_limit, host_limits
from eigen_core.memory.usage import SystemMeter, Usage
from eigen_core.needs import Facts
from eigen_core.planning import PHASES, Limit, Plan, Suggestion, Verdict, plan_of, suggestions_for
from eigen_core.store import run_root
from eigen_core.store.files import ANOTHER_STORE, nearest_there
from eigen_core.units import size

_MOST_SUGGESTED = 3
# Measured on Linux with glibc, torch 2.13 (CPU) and Prefect 3.8.8, at the peak of a training: mostly stacks of threads.
_ADDRESSES_WITHOUT_MEMORY = 1_900_000_000


DISK_ADVICE = f"Free some, keep fewer generations (checkpoint.keep_last), or {ANOTHER_STORE}."


@dataclass(frozen=True)
class DiskRoom:
    """What a run still writes on this machine, and what is free for it.

    Attributes:
        folder: which holds the run.
        needed_bytes: the most that it has there at any time, less what it has now (bytes).
        free_bytes: what is free (bytes).
    """

    folder: Path
    needed_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, plan: Plan, config: Config, run: str | None) -> "DiskRoom":
        """Return that of a run with this plan; None: it is a new one, without a name."""
        settings = config.checkpoint
        folder = run_root(settings.store, settings.local)
        most = plan.disk.local_bytes or plan.disk.most_bytes
        held = 0 if run is None else sum(_size_of(path) for path in (folder / run).rglob("*"))
        return cls(folder, max(most - held, 0), shutil.disk_usage(nearest_there(folder)).free)

    @property
    def fits(self) -> bool:
        """Whether enough is free."""
        return self.needed_bytes <= self.free_bytes

    def __str__(self) -> str:
        return f"it takes {size(self.needed_bytes)} of the disk, and {size(self.free_bytes)} are free at {self.folder}"


def _size_of(path: Path) -> int:
    """Return the size of a file; 0 if it is none, or has gone meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


@dataclass(frozen=True)
class RunPlan:
    """A plan and its verdict under the limits of this machine.

    Attributes:
        facts: of the data that the run is trained on; None if it has none.
        plan: what the run takes; its verdicts are those on this machine.
        limits: of the host, the smallest first.
        device_limit: of the GPU; None if the run has none.
        suggestions: what would make it fit; none if it does.
        disk: what it still writes here, and what is free.
        missing_device: the run is to compute on a GPU, and this machine has none.
    """

    facts: Facts
    plan: Plan
    limits: HostLimits
    device_limit: DeviceLimit | None
    suggestions: tuple[Suggestion, ...]
    disk: DiskRoom
    missing_device: bool = False

    @property
    def fits(self) -> bool:
        """Whether the run can be trained on this machine, now."""
        return self.fits_memory and self.disk.fits

    @property
    def fits_memory(self) -> bool:
        """Whether it can as far as memory and device are concerned."""
        return self.plan.fits and not self.missing_device

    def sentence(self) -> str:
        """Return the verdict in one to four sentences: peak, phase, limit with its origin; what would make it fit."""
        if self.disk.fits:
            return self.memory_sentence()
        disk = f"{self.disk}. {DISK_ADVICE}"
        if self.fits_memory:
            return f"The run does not fit: {disk}"
        return f"{self.memory_sentence()} {disk[0].upper()}{disk[1:]}"

    def memory_sentence(self) -> str:
        """Return the part of `sentence` on memory and device."""
        if self.fits_memory:
            return f"The run fits: {'; '.join(_need(verdict) for verdict in self.plan.verdicts)}."
        needs = [_need(verdict) for verdict in self.plan.verdicts if not verdict.fits]
        if self.missing_device:
            needs.append(f"it takes {size(self.plan.peak_device_bytes)} of a GPU, and torch finds none here")
        return " ".join([f"The run does not fit: {'; '.join(needs)}.", *self._advice()])

    def _advice(self) -> list[str]:
        """What to do about a run that does not fit, in sentences."""
        if self.missing_device and self.plan.fits:
            return ["Use device cpu or auto, or check the driver."]
        enough = [suggestion for suggestion in self.suggestions if suggestion.fits]
        shown = "; ".join(map(str, (enough or self.suggestions)[:_MOST_SUGGESTED]))
        if enough:
            return [f"What helps: {shown}."]
        return [f"{f'What helps: {shown}; but' if shown else 'But'} no setting is enough: it needs more memory."]

    def document(self) -> dict[str, object]:
        """Return the plan as what JSON can hold, sizes in bytes."""
        return {
            "panel": None if self.facts is None else asdict(self.facts),
            **self.plan.document(),
            "fits": self.fits,
            "sentence": self.sentence(),
            "limits": [
                {"bytes": limit.bytes, "origin": limit.origin, "kind": limit.kind} for limit in self.limits.limits
            ],
            "device_limit": None
            if self.device_limit is None
            else {"bytes": self.device_limit.bytes, "origin": self.device_limit.origin},
            "suggestions": [
                {**asdict(suggestion), "settings": dict(suggestion.settings)} for suggestion in self.suggestions
            ],
        }


class RunTooLargeError(Exception):
    """A run does not fit into what this machine has. The message says what is missing and what would help.

    Attributes:
        run_plan: the plan that does not fit.
    """

    def __init__(self, run_plan: RunPlan) -> None:
        super().__init__(run_plan.sentence())
        self.run_plan = run_plan


def plan_run(config: Config, facts: Facts, run: str | None = None) -> RunPlan:
    """Plan a run, and find out whether it fits into what this machine has now, as the guard would.

    Args:
        config: of the run.
        facts: of its data.
        run: its name, if what it has on the disk already is to count; None: it is a new one.

    Raises:
        InputError: a limit cannot be read, or nothing can run under it.
    """
    limits = host_limits(config.memory)
    missing = config.device == "cuda" and not torch.cuda.is_available()
    device = torch.device("cpu") if missing else resolve_device(config.device)
    of_device = device_limit(device)
    server = False
    plan = plan_of(config, facts, server=server)
    usage = SystemMeter(limits.limits, device).read()
    hard = config.memory.hard
    of_host = zip(limits.limits, usage.counted, strict=True)
    left = (_available(limit, counted, usage, plan, hard) for limit, counted in of_host)
    available = {"host": min(left, key=lambda limit: limit.bytes)}
    if of_device is not None:
        available["device"] = _available_on_device(of_device, usage.device, plan, hard)
    plan = plan_of(config, facts, server=server, limits=available)
    suggestions = suggestions_for(config, facts, plan, available, server=server)
    room = DiskRoom.of(plan, config, run)
    return RunPlan(facts, plan, limits, of_device, tuple(suggestions), room, missing)


def require_fit(config: Config, facts: Facts, run: str | None = None) -> RunPlan:
    """Return the plan of a run that fits; its arguments are those of `plan_run`.

    Raises:
        RunTooLargeError: it does not.
        InputError: a limit cannot be read, or the run is to compute on a GPU and there is none.
    """
    resolve_device(config.device)
    run_plan = plan_run(config, facts, run)
    if not run_plan.fits:
        raise RunTooLargeError(run_plan)
    return run_plan


def _available(limit: HostLimit, counted: int, usage: Usage, plan: Plan, hard: float) -> Limit:
    """Return what a limit leaves, in resident memory of all processes of the run, as a plan has it.

    A group's limit and the machine's count others too: what they take now is taken off. RLIMIT_AS counts addresses, of
    this process alone: those with no memory behind them are taken off, and Prefect's server has its own.
    """
    left = Limit(int(hard * limit.bytes), f"{hard:.0%} of {size(limit.bytes)}, {limit.origin}")
    if limit.kind == "run":
        return left
    if limit.kind == "address_space":
        unused = max(counted - usage.own, _ADDRESSES_WITHOUT_MEMORY) + plan.unwritten_bytes
        server = sum(part.host_bytes for part in plan.parts if part.server)
        beside = f" with {size(server)} for Prefect's server beside it" if server else ""
        replay = f", {size(plan.unwritten_bytes)} of them the replay's" if plan.unwritten_bytes else ""
        origin = f"{left.origin}{beside}, less {size(unused)} of addresses without memory{replay}"
        return replace(left, bytes=max(left.bytes - unused + server, 0), origin=origin)
    return _less(left, counted - usage.host)


def _available_on_device(limit: DeviceLimit, usage: DeviceUsage | None, plan: Plan, hard: float) -> Limit:
    left = Limit(int(hard * limit.bytes), f"{hard:.0%} of {size(limit.bytes)}, {limit.origin}")
    if usage is None:
        return left
    context = max(plan.held_on_device(phase, "driver") for phase in PHASES)
    return _less(left, usage.taken - usage.reserved - context)


def _need(verdict: Verdict) -> str:
    missing = "" if verdict.fits else f": {size(verdict.missing_bytes)} are missing"
    return (
        f"it takes {size(verdict.peak_bytes)} of the {verdict.where} at the peak, in phase {verdict.phase}, and may "
        f"take {size(verdict.limit.bytes)} ({verdict.limit.origin}){missing}"
    )


def _less(left: Limit, others: int) -> Limit:
    if others <= 0:
        return left
    origin = f"{left.origin}, less {size(others)} that others take now"
    return Limit(max(left.bytes - others, 0), origin)
