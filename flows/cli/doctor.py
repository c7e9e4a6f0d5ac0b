"""The command `eigen doctor`: check that this machine can train; after a failed check the others still run."""

import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from eigen_core.checkpoint.store import ANOTHER_FOLDER, LocalStore, StoreUnavailableError, call_with_timeout
from eigen_core.checkpoint.store_location import is_remote, require_store, run_root
from eigen_core.common.errors import InputError
from eigen_core.common.files import nearest_existing, require_place
from eigen_core.common.text import size
from flows.cli.common import EXIT_OTHER, Json, RunOptions, run_options
from flows.cli.console import output_console, print_json, print_line

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.task.interface import TaskData

Status = Literal["ok", "warning", "failed"]
Found = tuple[Status, str, str]
"""Status of a check, what it found, and advice (empty: none is needed)."""

_API_SECONDS = 15.0
_CHECK_WIDTH = 15
_SEE_DATA = "Correct the data first: see the check of the data."
_DRIVER = Path("/proc/driver/nvidia/version")


@run_options("preset", "assignments", "data", "store", "device")
def doctor(*, options: RunOptions, as_json: Json = False) -> None:
    """Check whether this machine can train, and say what to do if not: exit code 0 if nothing failed, else 1."""
    from flows.server.prefect_settings import prepare_environment
    from flows.server.servers import server_for_training
    from flows.server.state_directory import StateDirectory

    config = options.config()
    prepare_environment()
    # The server that a training would use is checked: that of `eigen up`, if one runs here.
    os.environ.update(server_for_training(StateDirectory.of(os.environ), os.environ))
    console = output_console()
    findings = []
    for finding in Doctor(config).findings():
        findings.append(finding)
        if not as_json:
            style = {"ok": "green", "warning": "yellow", "failed": "bold red"}[finding.status]
            print_line(console, (f"{finding.status:<9}", style), f"{finding.check:<{_CHECK_WIDTH}}{finding.found}")
            if finding.advice:
                print_line(console, f"{'':<{9 + _CHECK_WIDTH}}{finding.advice}")
    bad = Counter(finding.status for finding in findings)
    if as_json:
        print_json({"healthy": not bad["failed"], "checks": [asdict(finding) for finding in findings]})
    elif bad["failed"] or bad["warning"]:
        print_line(console, f"{bad['failed']} failed, {bad['warning']} with a warning, of {len(findings)} checks.")
    else:
        print_line(console, f"All {len(findings)} checks passed: train with `eigen train`.")
    if bad["failed"]:
        raise typer.Exit(EXIT_OTHER)


@dataclass(frozen=True)
class Finding:
    """Result of one check; status `failed`: no training is possible; `warning`: it may be slower, or fail later."""

    check: str
    status: Status
    found: str
    advice: str = ""


class Doctor:
    def __init__(self, config: "Config") -> None:
        self._config = config

    def findings(self) -> Iterator[Finding]:
        """Run the checks one after another and yield the finding of each; an exception becomes a finding `failed`."""
        computing = (self._python, self._device, self._data, self._memory)
        for check in (*computing, self._server, self._store, self._disk, self._workers):
            status: Status = "failed"
            advice = ""
            try:
                status, found, advice = check()
            except (InputError, StoreUnavailableError) as error:
                found = str(error)
            except ImportError as error:
                found, advice = f"it cannot be loaded: {_first_line(error)}", "Install it again (make setup, or pip)."
            except MemoryError:
                found, advice = "there is not enough memory for this check", "Raise the memory limit (ulimit -v)."
            except Exception as error:  # noqa: BLE001 - whatever is wrong is what the check is for
                found = f"{type(error).__name__}: {_first_line(error)}"
            yield Finding(check.__name__.removeprefix("_"), status, found, advice)

    def _python(self) -> Found:
        import torch

        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
        found = f"Python {platform.python_version()} at {sys.executable}, torch {torch.__version__}, {build}"
        return "ok", found, ""

    def _device(self) -> Found:
        import torch

        from eigen_core.generation import resolve_device
        from eigen_core.machine.limits import device_limit
        from eigen_core.machine.performance import usable_cores

        device = resolve_device(self._config.device)
        limit = device_limit(device)
        if limit is not None:
            free, _ = torch.cuda.mem_get_info(device)
            return "ok", f"{device} (device={self._config.device}): {limit}, {size(free)} of it free now", ""
        found = f"cpu (device={self._config.device}), {usable_cores()} of {os.cpu_count()} cores"
        if self._config.device == "cpu":
            return "ok", found, ""
        if torch.version.cuda is not None:
            advice = "Run nvidia-smi to check the driver. Start a container with --gpus all."
            return "warning", f"{found}; torch is built for CUDA and finds no GPU", advice
        if _DRIVER.exists():
            advice = "Install torch's build for CUDA to use the GPU."
            return "warning", f"{found}, but torch is built for the CPU", advice
        return "ok", found, ""

    def _data(self) -> Found:
        from eigen_core.config.registry import has_prices

        task = self._config.task
        source = (self._config.market.data or "the bundled prices") if has_prices(task) else task
        return "ok", f"preset {self._config.preset}: {self._opened.size}, from {source}", ""

    def _memory(self) -> Found:
        run_plan = self._run_plan
        if run_plan is None:
            return "warning", "the memory that the run takes is not known", _SEE_DATA
        if run_plan.fits_memory:
            return "ok", run_plan.sentence(disk=False), ""
        advice = "Free memory, raise the limit, or change the settings as `eigen plan` says."
        return "failed", run_plan.sentence(disk=False), advice

    def _server(self) -> Found:
        from flows.server.servers import configured_api, require_answer, require_database, require_home

        if not os.environ.get("PREFECT_API_URL"):
            require_home(os.environ)
        # Imported before the timeout begins: the import may take longer than the API has to answer.
        import prefect.client.orchestration  # noqa: F401

        url = configured_api(os.environ)
        if url is not None:
            silent = f"Prefect's API did not answer within {_API_SECONDS:.0f} seconds."
            call_with_timeout(_API_SECONDS, partial(require_answer, url), silent)
            return "ok", f"{url} answers", ""
        require_database()
        return "ok", "no Prefect server is configured: training works without it; `eigen up` starts one", ""

    def _store(self) -> Found:
        require_place(self._folder / "run", ANOTHER_FOLDER)
        if self._folder.is_dir():
            LocalStore(self._folder).check()
        there = "" if self._folder.is_dir() else ", made by the first training"
        found = f"the folder {self._folder}{there}"
        url = self._config.checkpoint.store
        if is_remote(url):
            require_store(url)
            found = f"{url} answers; objects can be written, read and listed there; its runs are copied to {found}"
        return "ok", found, ""

    def _disk(self) -> Found:
        found = f"{size(shutil.disk_usage(nearest_existing(self._folder)).free)} free at {self._folder}"
        if self._run_plan is None:
            return "warning", f"{found}; the room that the run takes is not known", _SEE_DATA
        disk = self._run_plan.disk
        takes = f"{size(disk.checkpoint_bytes)} a checkpoint and {size(disk.local_bytes or disk.most_bytes)} at most"
        found = f"{found}; preset {self._config.preset} takes {takes}"
        if not self._run_plan.fits_disk:
            from eigen_core.planning.run_plan import DISK_ADVICE

            return "failed", found, DISK_ADVICE
        return "ok", found, ""

    def _workers(self) -> Found:
        scheduler = self._config.scheduler
        if scheduler is None:
            return "ok", f"no Dask scheduler is set (workers={self._config.workers})", ""
        from eigen_core.workers import connected, unreachable, worker_command

        with connected(scheduler) as client:
            addresses = sorted(client.nthreads())
        if not addresses:
            return "failed", f"{scheduler} has no workers", f"Start some: {worker_command(scheduler)}"
        lost = unreachable(addresses)
        found = f"{scheduler} has {len(addresses)} workers, and {len(addresses) - len(lost)} can be reached from here"
        if not lost:
            return "ok", found, ""
        advice = f"Open the ports of {', '.join(lost[:3])} to this machine: --worker-port of `dask worker` sets them."
        return "failed" if len(lost) == len(addresses) else "warning", found, advice

    @property
    def _folder(self) -> Path:
        return run_root(self._config.checkpoint.store, self._config.checkpoint.local)

    @cached_property
    def _opened(self) -> "TaskData":
        from eigen_core.task import open_data

        return open_data(self._config)

    @cached_property
    def _run_plan(self) -> "RunPlan | None":
        """Plan of the run, with its needs of memory and disk; None if the data cannot be used: see the check `data`."""
        from eigen_core.planning.run_plan import plan_run

        try:
            return plan_run(self._config, self._opened, measured=False)
        except (InputError, ImportError):
            return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no more is known"])[0]
