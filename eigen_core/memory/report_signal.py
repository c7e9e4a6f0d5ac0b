"""A report on demand: SIGUSR1 calls a function in a thread of its own."""

import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


def install_report_signal(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` whenever this process receives SIGUSR1; return what undoes that.

    The callback runs in a thread of its own, one call at a time; what it raises is shown by `threading.excepthook` and
    disturbs nothing else. Signals that come meanwhile are answered afterwards. Does nothing where there is no SIGUSR1,
    and outside the main thread, where Python cannot listen to signals.
    """
    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        logger.debug("SIGUSR1 is not answered here: only the main thread of a Unix process can listen to it.")
        return _nothing
    # A handler may interrupt any line of the main thread, whatever locks that holds: SimpleQueue.put takes none of
    # Python's own.
    wanted: SimpleQueue[bool] = SimpleQueue()
    before = signal.signal(signal.SIGUSR1, lambda *_: wanted.put(True))

    def answer() -> None:
        while wanted.get():
            call = threading.Thread(target=callback, name="memory-report", daemon=True)
            call.start()
            call.join()

    listener = threading.Thread(target=answer, name="memory-report-signal", daemon=True)
    listener.start()

    def undo() -> None:
        signal.signal(signal.SIGUSR1, before)
        wanted.put(False)
        listener.join()

    return undo


def _nothing() -> None:
    """There is nothing to undo."""
