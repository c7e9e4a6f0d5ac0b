"""The process and its installation: cache directory, settings of numeric libraries, code digest, child processes."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Literal

Instructions = Literal["auto", "avx2"]

MKL_MODE = "MKL_CBWR"
STRICT = "AUTO,STRICT"
TORCH_CAPABILITY = "ATEN_CPU_CAPABILITY"
_STRICT_AVX2 = "AVX2,STRICT"
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACE = ":4096:8"

# What the environment had, None: nothing, before something was set here.
_before: dict[str, str | None] = {}


def compute_strictly() -> None:
    """Let products have the same bits each time, unless the user has set how the libraries compute.

    Those of MKL have them whatever is multiplied beside them. cuBLAS needs workspaces of a fixed size, without which
    `torch.use_deterministic_algorithms` refuses its products.
    """
    for name, value in ((MKL_MODE, STRICT), (CUBLAS_WORKSPACE, _FIXED_WORKSPACE)):
        if name not in os.environ:
            _set(name, value)


def wait_passively() -> None:
    """Let threads of OpenMP sleep while they wait, unless the user has set how they wait.

    Threads that spin while they wait stall each other where other processes compute. It has no effect on a process
    that has imported torch already.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def compute_with(instructions: Instructions) -> None:
    """Let MKL and torch compute with these instructions, unless the user has set others."""
    if instructions == "avx2":
        if os.environ[MKL_MODE] == STRICT:
            _set(MKL_MODE, _STRICT_AVX2)
        if TORCH_CAPABILITY not in os.environ:
            _set(TORCH_CAPABILITY, "avx2")


def environment_without_instructions() -> dict[str, str]:
    """Return the environment of this process without what was set here: a process that has it chooses for itself.

    A process that has computed with some instructions would else pass them on to every run that it starts.
    """
    given = {name: value for name, value in os.environ.items() if name not in _before}
    return given | {name: value for name, value in _before.items() if value is not None}


def _set(name: str, value: str) -> None:
    _before.setdefault(name, os.environ.get(name))
    os.environ[name] = value


# The shell reads what this process writes, or that it has ended.
_STOP = 'read -r _ && exit 0; kill -TERM "$0" 2>/dev/null'
# Looks each second whether the process is still there: later another one may have its number.
_STOP_THEN_KILL = f"""{_STOP}
left=$1
while kill -0 "$0" 2>/dev/null; do
  if [ "$left" -le 0 ]; then kill -KILL "$0"; exit; fi
  sleep 1
  left=$((left - 1))
done"""


def stop_with_this_process(pid: int, kill_after_seconds: int | None = None) -> Callable[[], None]:
    """Leave a shell behind that ends process `pid` when this process has ended, however it ended.

    Args:
        pid: of the process, which is asked to end (SIGTERM).
        kill_after_seconds: if it has not ended so long after, it is killed; None: it may take its time.

    Returns:
        What makes the shell end without doing so, to be called once process `pid` has ended by itself.
    """
    shell = shutil.which("sh")
    if shell is None:
        return lambda: None
    reading, writing = os.pipe()
    # The writing end stays open, unread and uninherited, as long as this process lives.
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


def default_cache_root() -> Path:
    """Return the folder of the cache: EIGEN_CACHE, else `eigen` in XDG_CACHE_HOME, else `~/.cache/eigen`."""
    chosen = os.environ.get("EIGEN_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eigen"


def code_digest(packages: Iterable[str], kinds: Collection[str] = (".py",), beside: str = "") -> str:
    """Return the SHA-256 of the files of packages, with their paths in them.

    Args:
        packages: names of packages that can be imported.
        kinds: endings of the files that count.
        beside: what else is to change the hash.
    """
    found = hashlib.sha256(beside.encode())
    for package in packages:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in kinds):
            found.update(f"\0{package}/{path.relative_to(root).as_posix()}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()
