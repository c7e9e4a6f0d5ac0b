"""A report on demand: SIGUSR1 calls a function in its own thread."""

import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


def install_report_signal(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` whenever this process receives SIGUSR1; return a function that undoes this.

    The callback runs in its own thread, one call at a time; its errors go to `threading.excepthook` and stop nothing.
    Signals during a call are answered after it. Does nothing where there is no SIGUSR1, and outside the main thread,
    where Python cannot handle signals.
    """
    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        logger.debug("SIGUSR1 is not answered here: only the main thread of a Unix process can handle it.")
        return lambda: None
    # A handler may interrupt any line of the main thread, whatever locks that holds: SimpleQueue.put takes none of
    # Python's own.
    requests: SimpleQueue[bool] = SimpleQueue()
    before = signal.signal(signal.SIGUSR1, lambda *_: requests.put(True))

    def answer() -> None:
        while requests.get():
            call = threading.Thread(target=callback, name="memory-report", daemon=True)
            call.start()
            call.join()

    listener = threading.Thread(target=answer, name="memory-report-signal", daemon=True)
    listener.start()

    def undo() -> None:
        signal.signal(signal.SIGUSR1, before)
        requests.put(False)
        listener.join()

    return undo
