"""Who holds a lease, and whether that process can be proved to be gone."""

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
_ENDED = ("Z", "X", "x")


class Owner(BaseModel):
    """One process on one machine, so described that no other process ever matches.

    Where a part is not known (there is no `/proc`), it is None, and nothing can be proved.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str
    pid: int
    boot: str | None
    """What the machine's kernel calls the time since it was started."""
    namespace: str | None
    """Where its process numbers count: containers of one machine have each their own."""
    started: int | None
    """When the process started (clock ticks since the machine did)."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """Return the description of the process that calls."""
    pid = os.getpid()
    status = _status(pid) if _sees_itself() else None
    return Owner(
        host=socket.gethostname(),
        pid=pid,
        boot=_boot(),
        namespace=_namespace(),
        started=None if status is None else status[1],
    )


def is_gone(owner: Owner) -> bool:
    """Whether a process has certainly ended: it ran on this machine, and its number is free or another's by now."""
    if owner.boot is None or owner.namespace is None or owner.started is None or owner.pid <= 0:
        return False
    if owner.boot != _boot() or owner.namespace != _namespace() or not _sees_itself():
        return False
    try:
        # A process of another user is hidden in some /proc, but not from this question.
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    status = _status(owner.pid)
    if status is None:
        return False
    state, started = status
    # A process that was killed keeps its number until its parent asks how it ended.
    return started != owner.started or state in _ENDED


def _boot() -> str | None:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None


def _sees_itself() -> bool:
    """Whether /proc counts processes as this process does."""
    try:
        return os.readlink(_PROC / "self") == str(os.getpid())
    except OSError:
        return False


def _status(pid: int) -> tuple[str, int] | None:
    """Return a process's state and when it started, None if it is not known."""
    try:
        content = (_PROC / str(pid) / "stat").read_text(errors="replace")
        # The command's name, in brackets, may hold anything, brackets and spaces too.
        fields = content.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return None
