"""This process: environment variables of numeric libraries, stop requests, umask, cache directory, hash of the code.

MKL, torch and cuBLAS read their environment variables when they first compute, OpenMP when torch is imported. So this
module, which sets these variables, imports none of these libraries.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from eigen_core.common.errors import InputError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Instructions = Literal["auto", "avx2"]

MKL_MODE = "MKL_CBWR"
STRICT = "AUTO,STRICT"
TORCH_CAPABILITY = "ATEN_CPU_CAPABILITY"
_STRICT_AVX2 = "AVX2,STRICT"
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACE = ":4096:8"

# Former values of the environment variables that `_set` changed; None: the variable was not set.
_before: dict[str, str | None] = {}


def prepare_libraries() -> None:
    """Set MKL_CBWR, CUBLAS_WORKSPACE_CONFIG and OMP_WAIT_POLICY, unless the user did; call it before torch is imported.

    MKL's products then do not depend on the size of the batch. cuBLAS needs workspaces of a fixed size for
    `torch.use_deterministic_algorithms`. OpenMP's threads sleep while they wait: on a busy machine, threads that spin
    stall each other.
    """
    for name, value in ((MKL_MODE, STRICT), (CUBLAS_WORKSPACE, _FIXED_WORKSPACE)):
        if name not in os.environ:
            _set(name, value)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def use_instructions(instructions: Instructions) -> None:
    """For "avx2", limit MKL and torch to AVX2 unless the user set MKL_CBWR or ATEN_CPU_CAPABILITY; "auto": no limit."""
    if instructions == "avx2":
        if os.environ[MKL_MODE] == STRICT:
            _set(MKL_MODE, _STRICT_AVX2)
        if TORCH_CAPABILITY not in os.environ:
            _set(TORCH_CAPABILITY, "avx2")


def environment_without_instructions() -> dict[str, str]:
    """Return this process's environment variables for a child, without this module's changes for MKL, torch, cuBLAS."""
    unchanged = {name: value for name, value in os.environ.items() if name not in _before}
    return unchanged | {name: value for name, value in _before.items() if value is not None}


def _set(name: str, value: str) -> None:
    _before.setdefault(name, os.environ.get(name))
    os.environ[name] = value


# The shell's `read` returns when this process writes a line to the pipe or exits.
_STOP = 'read -r _ && exit 0; kill -TERM "$0" 2>/dev/null'
# Checks each second whether process $0 still exists, since the system may reuse its PID later.
_STOP_THEN_KILL = f"""{_STOP}
left=$1
while kill -0 "$0" 2>/dev/null; do
  if [ "$left" -le 0 ]; then kill -KILL "$0"; exit; fi
  sleep 1
  left=$((left - 1))
done"""


def stop_with_this_process(pid: int, kill_after_seconds: int | None = None) -> Callable[[], None]:
    """Start a shell that sends SIGTERM to process `pid` when this process exits for any reason. No effect without `sh`.

    If `pid` still runs `kill_after_seconds` later, SIGKILL follows; None: never. Returns a function that stops the
    shell; call it once process `pid` has exited.
    """
    shell = shutil.which("sh")
    if shell is None:
        return lambda: None
    reading, writing = os.pipe()
    # The writing end of the pipe stays open as long as this process lives, since no child process inherits it.
    os.set_inheritable(writing, False)
    script = [_STOP, str(pid)]
    if kill_after_seconds is not None:
        script = [_STOP_THEN_KILL, str(pid), str(kill_after_seconds)]
    subprocess.Popen(
        [shell, "-c", *script],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)

    def release() -> None:
        with suppress(BrokenPipeError):
            os.write(writing, b"\n")
        os.close(writing)

    return release


def set_umask(environ: Mapping[str, str]) -> None:
    """Set the umask to EIGEN_UMASK in `environ`; `InputError` if that is not three octal digits.

    Without EIGEN_UMASK it is 077: only this user may access files that this process creates.
    """
    text = environ.get("EIGEN_UMASK", "") or "077"
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise InputError(f"EIGEN_UMASK is '{text}', which is no umask: write three octal digits, such as 027.")
    os.umask(int(text, 8))


_AGAIN_SECONDS = 0.05


@contextmanager
def stop_requests_unmasked(requests: tuple[type[BaseException], ...]) -> Iterator[None]:
    """If the block raises an error while it handles a stop request, raise that stop request instead of the error.

    `requests` are the exceptions that signal handlers raise to stop the process. If a signal arrives while Prefect
    creates a task run, Prefect raises `ValueError("Task run is not set")`, which would end the flow run as failed.
    """
    try:
        yield
    except Exception as error:
        cause = error.__context__
        while cause is not None and not isinstance(cause, requests):
            cause = cause.__context__
        if cause is None:
            raise
        raise cause from None


@contextmanager
def stop_requests_raised() -> Iterator[None]:
    """Raise a stop request in the block even if a signal handler raised it in a finalizer or during garbage collection.

    Python passes an exception that leaves a finalizer or weakref callback to `sys.unraisablehook`, and goes on. If the
    exception is a stop request (a `BaseException` but no `Exception`: `KeyboardInterrupt`, Prefect's
    `TerminationSignal`), the main thread raises it again 0.05 s later, by SIGALRM, which also interrupts a sleep. Does
    nothing if called in another thread than the main one, since only that receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    swallowed: list[BaseException] = []

    def keep(report: "UnraisableHookArgs") -> None:
        if report.exc_value is None or isinstance(report.exc_value, Exception):
            former_hook(report)
            return
        swallowed.append(report.exc_value)
        # By an alarm, since Python would swallow an exception that this hook raises.
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def raise_again(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a signal handler
        if swallowed:
            raise swallowed.pop().with_traceback(None)

    former_hook, sys.unraisablehook = sys.unraisablehook, keep
    former_handler = signal.signal(signal.SIGALRM, raise_again)
    try:
        yield
        if swallowed:
            raise swallowed.pop().with_traceback(None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former_handler)
        sys.unraisablehook = former_hook


def default_cache_root() -> Path:
    """Return the folder of Eigen's caches: EIGEN_CACHE, else `eigen` in XDG_CACHE_HOME, else `~/.cache/eigen`."""
    chosen = os.environ.get("EIGEN_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eigen"


def code_digest(packages: Iterable[str], kinds: Collection[str] = (".py",), extra: str = "") -> str:
    """Return one SHA-256 of `extra`, and of path and content of each file in `packages` whose suffix is in `kinds`."""
    found = hashlib.sha256(extra.encode())
    for package in packages:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in kinds):
            found.update(f"\0{package}/{path.relative_to(root).as_posix()}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()
