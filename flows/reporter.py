"""Reports of a training to Prefect's server: pages and names. Nothing of it is waited for while agents are computed."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Self

import httpx
from prefect.context import SyncClientContext
from prefect.logging import get_run_logger

from flows.server_presence import asked_twice, require_server
from tasks.artifacts import REFUSALS

_EVERY_SECONDS = 5.0


class Reporter:
    """Sends reports in a thread of its own, at most every few seconds; a context manager that sends the last ones.

    Of reports of the same kind only the newest is sent. What the server does not accept is logged; that it does not
    answer is logged once, and what was to be sent then is lost.

    Args:
        run: name of the run, for the log.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._waiting: dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._unavailable = False
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="reporter")
        self._sender: Future[None] | None = None

    def __enter__(self) -> Self:
        self._sender = self._threads.submit(copy_context().run, self._send_all)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._threads.shutdown()
        if error is None:
            self._raise()

    def report(self, kind: str, send: Callable[[], None]) -> None:
        """Let `send` be called soon, instead of what is waiting of the same kind.

        It is called in the reporter's thread, and may raise one of `REFUSALS`.
        """
        self._raise()
        with self._changed:
            self._waiting.pop(kind, None)
            self._waiting[kind] = send
            self._changed.notify_all()

    def _raise(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._sender is not None and self._sender.done():
            self._sender.result()

    def _send_all(self) -> None:
        # Its own client: that of the flow run's context belongs to the thread that trains.
        with asked_twice(), SyncClientContext():
            while reports := self._next():
                self._send(reports)

    def _next(self) -> list[Callable[[], None]]:
        """Wait until there are reports to send, and return them; none: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            reports, self._waiting = list(self._waiting.values()), {}
        return reports

    def _send(self, reports: list[Callable[[], None]]) -> None:
        began = time.monotonic()
        for send in (require_server, *reports):
            try:
                send()
                self._unavailable = False
            except REFUSALS as error:
                if not self._unavailable:
                    get_run_logger().warning(
                        "The pages of run %s could not be renewed: %s: %s", self._run, type(error).__name__, error
                    )
                # One that has become silent would let each report wait.
                self._unavailable = isinstance(error, httpx.TransportError)
                if self._unavailable:
                    break
        with self._changed:
            self._changed.wait_for(lambda: self._ended, _EVERY_SECONDS - (time.monotonic() - began))
