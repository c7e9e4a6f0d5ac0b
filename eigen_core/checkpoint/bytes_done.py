"""Progress of long reads and writes, in bytes, from any thread."""

from contextvars import copy_context
from threading import Lock

from eigen_core.progress import report_progress


class BytesDone:
    """Counts bytes and reports them to the listener of the context in which this object was made.

    Args:
        name: what goes on, such as "load".
        total: bytes at its end.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._context = copy_context()

    def add(self, count: int) -> None:
        """`count` further bytes are done."""
        with self._lock:
            self._done = min(self._done + count, self._total)
            self._context.run(report_progress, self._name, self._done, self._total)
