"""Checks that this machine has what a training needs, before anything is trained; no check depends on another."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console

from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.store import ANOTHER_STORE, StoreUnavailableError, is_remote, run_root, within
from eigen_core.common.errors import InputError
from eigen_core.common.files import nearest_there
from eigen_core.common.text import DISTRIBUTION, size
from flows.cli.common import (
    EXIT_OTHER,
    Json,
    RunOptions,
    output_console,
    print_json,
    print_line,
    run_options,
    sentences,
)

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.task import TaskData

Status = Literal["ok", "warning", "failed"]

_PYTHON_FIRST, _PYTHON_LAST = (3, 11), (3, 13)
_API_SECONDS = 15.0
_SHOWN_WORKERS = 3
_SEE_DATA = "Correct the data first."
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Finding:
    """Finding of one check.

    Attributes:
        check: its name.
        status: `failed`: nothing can be trained so; `warning`: it can, but not as well, or not for long.
        found: in words.
        advice: what to do; empty if all is well.
    """

    check: str
    status: Status
    found: str
    advice: str = ""


class Doctor:
    """Checks this machine for a run.

    Args:
        config: the run: its store, device, memory limit, scale and scheduler.
    """

    def __init__(self, config: "Config") -> None:
        self._config = config
        self._checks: dict[str, Callable[[], Finding]] = {
            "python": self._python,
            "torch": self._torch,
            "device": self._device,
            "TA-Lib": self._ta_lib,
            "data": self._data,
            "memory limits": self._memory_limits,
            "memory": self._memory,
            "Prefect": self._prefect,
            "Prefect's API": self._api,
            "store": self._store,
            "run folder": self._run_folder,
            "disk": self._disk,
            "workers": self._workers,
        }

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks, in order."""
        return tuple(self._checks)

    def findings(self) -> Iterator[Finding]:
        """Run one check after the other. Nothing is raised: what goes wrong is what was found."""
        for name, check in self._checks.items():
            yield _looked(name, check)

    def _python(self) -> Finding:
        have = ".".join(map(str, sys.version_info[:3]))
        found = f"Python {have} at {sys.executable}"
        if not _PYTHON_FIRST <= sys.version_info[:2] <= _PYTHON_LAST:
            return Finding("python", "failed", found, "Make the environment anew with Python 3.11 to 3.13: make setup.")
        return Finding("python", "ok", found)

    def _torch(self) -> Finding:
        import torch

        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
        return _versioned("torch", "torch", f"torch {torch.__version__}, {build}", torch.__version__.partition("+")[0])

    def _device(self) -> Finding:
        import torch

        from eigen_core.generation import resolve_device
        from eigen_core.machine import device_limit
        from eigen_core.machine.threads import usable_cores

        device = resolve_device(self._config.device)
        limit = device_limit(device)
        if limit is not None:
            free, _ = torch.cuda.mem_get_info(device)
            found = f"{device} (device={self._config.device}): {limit}, {size(free)} of it free now"
            return Finding("device", "ok", f"{found}; {_driver()}")
        found = f"cpu (device={self._config.device}), {usable_cores()} of {os.cpu_count()} cores"
        if self._config.device == "cpu":
            return Finding("device", "ok", found)
        if _DRIVER.exists() and torch.version.cuda is None:
            found = f"{found}; {_driver()}, but torch is built for the CPU"
            return Finding("device", "warning", found, "Install torch's build for CUDA to use the GPU.")
        if torch.version.cuda is not None:
            found = f"{found}; torch is built for CUDA and finds no GPU; {_driver()}"
            return Finding("device", "warning", found, "Look at nvidia-smi; in a container, start it with --gpus all.")
        return Finding("device", "ok", f"{found}; {_driver()}")

    def _ta_lib(self) -> Finding:
        import talib

        library = getattr(talib, "__ta_version__", b"?").decode(errors="replace").partition(" ")[0]
        return Finding("TA-Lib", "ok", f"TA-Lib {talib.__version__}, C library {library}")

    def _data(self) -> Finding:
        from eigen_core.config.values import has_prices

        task = self._config.task
        source = (self._config.market.data or "the bundled prices") if has_prices(task) else task
        return Finding("data", "ok", f"preset {self._config.preset}: {self._opened.size}, from {source}")

    def _memory_limits(self) -> Finding:
        from eigen_core.generation import resolve_device
        from eigen_core.machine import headroom_bytes, host_limits

        memory = self._config.memory
        limits = "; ".join(map(str, host_limits(memory).limits))
        headroom = headroom_bytes(memory, resolve_device("cpu"))
        free = f"{size(headroom)} can be taken now before the guard's line at {memory.hard:.0%}"
        return Finding("memory limits", "ok", f"{limits}; {free}")

    def _memory(self) -> Finding:
        run_plan = self._run_plan
        if run_plan is None:
            return Finding("memory", "warning", "what the run takes is not known", _SEE_DATA)
        if run_plan.fits_memory:
            return Finding("memory", "ok", run_plan.memory_sentence())
        advice = "Free memory, raise the limit, or change the settings as `eigen plan` says."
        return Finding("memory", "failed", run_plan.memory_sentence(), advice)

    def _prefect(self) -> Finding:
        have = version("prefect")
        return _versioned("Prefect", "prefect", f"Prefect {have}", have)

    def _api(self) -> Finding:
        from flows.server.servers import configured_api, require_answer, require_database, require_home

        if not os.environ.get("PREFECT_API_URL"):
            require_home(os.environ)
        # Loading it may take longer than the API has to answer.
        import prefect.client.orchestration  # noqa: F401

        url = configured_api(os.environ)
        if url is not None:
            silent = f"Prefect's API did not answer within {_API_SECONDS:.0f} seconds."
            within(_API_SECONDS, partial(require_answer, url), silent)
            return Finding("Prefect's API", "ok", f"{url} answers")
        require_database()
        return Finding("Prefect's API", "ok", "none is configured: trainings are no flow runs; `eigen up` starts one")

    def _store(self) -> Finding:
        from eigen_core.checkpoint.location import open_store

        url = self._config.checkpoint.store
        if is_remote(url):
            store = open_store(url)
            store.check()
            return Finding("store", "ok", f"{store.url} answers; objects can be written, read and listed there")
        folder = run_root(url, self._config.checkpoint.local)
        _require_usable(folder)
        there = "" if folder.is_dir() else ", made by the first training"
        return Finding("store", "ok", f"the folder {folder}{there}")

    def _run_folder(self) -> Finding:
        settings = self._config.checkpoint
        folder = run_root(settings.store, settings.local)
        _require_usable(folder)
        return Finding("run folder", "ok", f"{folder} can be written to, with hard links, locks and fsync")

    def _disk(self) -> Finding:
        settings = self._config.checkpoint
        folder = run_root(settings.store, settings.local)
        free = shutil.disk_usage(nearest_there(folder)).free
        found = f"{size(free)} free at {folder}"
        if self._run_plan is None:
            return Finding("disk", "warning", f"{found}; what the run takes is not known", _SEE_DATA)
        disk, room = self._run_plan.plan.disk, self._run_plan.disk
        whole = disk.local_bytes or disk.most_bytes
        found = (
            f"{found}; preset {self._config.preset} takes {size(disk.checkpoint_bytes)} a checkpoint and "
            f"{size(whole)} at most"
        )
        if not room.fits:
            from eigen_core.planning.run_plan import DISK_ADVICE

            return Finding("disk", "failed", found, DISK_ADVICE)
        return Finding("disk", "ok", found)

    def _workers(self) -> Finding:
        scheduler = self._config.scheduler
        if scheduler is None:
            return Finding("workers", "ok", f"none of a scheduler (workers={self._config.workers})")
        from eigen_core.workers import unreachable, worker_command, workers_of

        workers = workers_of(scheduler)
        found = f"{scheduler} has {len(workers)} workers with {sum(worker.threads for worker in workers)} threads"
        if not workers:
            return Finding("workers", "failed", found, f"Start some: {worker_command(scheduler)}")
        lost = unreachable([worker.address for worker in workers])
        if lost:
            status: Status = "failed" if len(lost) == len(workers) else "warning"
            found = f"{found}; {len(lost)} cannot be reached from here: {', '.join(lost[:_SHOWN_WORKERS])}"
            return Finding("workers", status, found, "Open their ports to this machine: --worker-port says which.")
        return Finding("workers", "ok", f"{found}, and all can be reached")

    @cached_property
    def _opened(self) -> "TaskData":
        from eigen_core.task import open_data

        return open_data(self._config)

    @cached_property
    def _run_plan(self) -> "RunPlan | None":
        """Plan of the run; None if its data cannot be used, which is a finding of its own."""
        from eigen_core.planning.run_plan import plan_run

        try:
            data = self._opened
        except InputError:
            return None
        return plan_run(self._config, data, measured=False)


def _looked(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (InputError, StoreUnavailableError) as error:
        return Finding(name, "failed", str(error), "")
    except ImportError as error:
        return Finding(name, "failed", f"it cannot be loaded: {_first_line(error)}", "Install it again: make setup.")
    except MemoryError:
        return Finding(name, "failed", "there is not enough memory to look", "Raise the limit, such as ulimit -v.")
    except Exception as error:  # noqa: BLE001 - whatever is wrong is what the check is for, and none stops another
        return Finding(name, "failed", f"{type(error).__name__}: {_first_line(error)}", "")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no more is known"])[0]


def _versioned(check: str, package: str, found: str, have: str) -> Finding:
    """Compare a version with the one that Eigen is tried with, if it is tried with one alone."""
    pinned = _pinned(package)
    if pinned is None or pinned == have:
        return Finding(check, "ok", found)
    advice = f"Eigen was tried with {package} {pinned}: with another, equal runs may end differently or not at all."
    return Finding(check, "warning", found, advice)


def _pinned(package: str) -> str | None:
    try:
        needed = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    return next((line.removeprefix(f"{package}==") for line in needed if line.startswith(f"{package}==")), None)


def _driver() -> str:
    """Return the version of NVIDIA's driver, in words."""
    try:
        first = _DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        return "no NVIDIA driver"
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ..."
    numbers = [word for word in first.split() if word[0].isdigit() and "." in word]
    return f"NVIDIA driver {numbers[0]}" if numbers else "an NVIDIA driver"


def _require_usable(folder: Path) -> None:
    """Try in a folder whatever a store does; one that is missing is tried above it, and not made.

    Raises:
        InputError, StoreUnavailableError: it cannot be used.
    """
    if folder.is_dir():
        LocalStore(folder).check()
        return
    with _folder_in(nearest_there(folder)) as scratch:
        LocalStore(scratch).check()


@contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """Give a folder that is gone afterwards.

    Raises:
        InputError: there can be none.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=".eigen-doctor-", dir=parent)
    except OSError as error:
        raise InputError(
            f"No folder can be made in {parent}: {error.strerror}. Change its permissions or {ANOTHER_STORE}."
        ) from error
    with made as name:
        yield Path(name)


_FINDING_STYLES: "dict[Status, str]" = {"ok": "green", "warning": "yellow", "failed": "bold red"}
_CHECK_WIDTH = 15


def print_findings(console: Console, findings: "Iterable[Finding]") -> "list[Finding]":
    """Print each finding of `eigen doctor` as it comes, then how many were bad, and return them."""
    printed = []
    for finding in findings:
        status = (f"{finding.status:<9}", _FINDING_STYLES[finding.status])
        print_line(console, status, f"{finding.check:<{_CHECK_WIDTH}}{finding.found}")
        if finding.advice:
            print_line(console, f"{'':<{9 + _CHECK_WIDTH}}{finding.advice}")
        printed.append(finding)
    failed = sum(finding.status == "failed" for finding in printed)
    warnings = sum(finding.status == "warning" for finding in printed)
    if failed or warnings:
        print_line(console, f"{failed} failed, {warnings} with a warning, of {len(printed)} checks.")
    else:
        print_line(console, f"All {len(printed)} checks passed: train with `eigen train`.")
    return printed


def is_healthy(findings: "Sequence[Finding]") -> bool:
    """Whether nothing failed."""
    return all(finding.status != "failed" for finding in findings)


def findings_document(findings: "Sequence[Finding]") -> dict[str, Any]:
    """Return what `eigen doctor --json` prints. Its keys are a contract."""
    return {"healthy": is_healthy(findings), "checks": [asdict(finding) for finding in findings]}


@sentences
@run_options("preset", "assignments", "data", "store", "device")
def doctor(*, options: RunOptions, as_json: Json = False) -> None:
    """Check what a training needs here, and say what to do: exit code 0 if nothing failed, 1 otherwise."""
    from flows.server.environment import prepare_environment
    from flows.server.servers import server_for_training
    from flows.server.state_directory import StateDirectory

    config = options.config()
    prepare_environment()
    # What is checked is the server that a training would use: that of `eigen up`, if one runs here.
    os.environ.update(server_for_training(StateDirectory.of(os.environ), os.environ))
    if as_json:
        findings = list(Doctor(config).findings())
        print_json(findings_document(findings))
    else:
        findings = print_findings(output_console(), Doctor(config).findings())
    if not is_healthy(findings):
        raise typer.Exit(EXIT_OTHER)
