"""Ctrl-C and SIGTERM of a command that trains."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from eigen_core.training.stop_requests import stop_requests_raised


class StopSignals:
    """Decides what Ctrl-C and SIGTERM do.

    Before a training they end the process at once: an exception could be swallowed by a library that is being imported
    and leave it half initialised. During a training the first one raises `KeyboardInterrupt`, so that the flow can
    report how it ended; the second one ends the process at once. That is always safe: a checkpoint is there completely
    or not at all, and the kernel frees the run's lock.

    Attributes:
        requested: the user has asked a training to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._gentle = False
        self._last_actions: list[Callable[[], object]] = []

    def before_leaving(self, action: Callable[[], object]) -> None:
        """Call `action`, which must be quick, before the process is ended at once."""
        self._last_actions.append(action)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let the first signal inside the block raise `KeyboardInterrupt`."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a stop was requested: for a request whose exception got lost on its way."""
        if self.requested:
            raise KeyboardInterrupt

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a signal handler
        """Handle a signal."""
        if self._gentle and not self.requested:
            self.requested = True
            raise KeyboardInterrupt
        for action in self._last_actions:
            action()
        os.write(2, b"eigen: Stopped.\n")
        os._exit(1)


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Handle Ctrl-C and SIGTERM inside the block. What the process was started to ignore stays ignored."""
    signals = StopSignals()
    # A shell lets its background jobs ignore Ctrl-C.
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    former = {number: signal.signal(number, signals.handle) for number in handled}
    try:
        with stop_requests_raised():
            yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def stopped_gently() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM inside the block raise `KeyboardInterrupt`, the second end the process."""
    with stop_signals() as signals, signals.raising():
        yield
