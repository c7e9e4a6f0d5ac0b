"""Reports of a training to Prefect's server: pages and names; a training waits for none of them."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from logging import Logger, LoggerAdapter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import SyncClientContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, Settings, temporary_settings

from flows.server.environment import prepare_environment
from flows.server.servers import configured_api, is_reachable
from tasks.artifacts import REFUSALS

if TYPE_CHECKING:
    from eigen_core.reporting.reports import WrittenReport

_ANSWER_SECONDS = 5.0
_REST_SECONDS = 60.0
_POLL_SECONDS = 1.0
_CALL_SECONDS = 10.0

_silent_until = 0.0


def require_server() -> None:
    """Refuse to ask a server that is unavailable: Prefect's client would try for a minute, at each call.

    After a server that does not refuse but stays silent, which takes five seconds to find out, none is asked for a
    minute.

    Raises:
        httpx.ConnectError: it is unavailable.
    """
    global _silent_until
    asked = time.monotonic()
    api = str(get_client(sync_client=True).api_url).rstrip("/")
    if asked < _silent_until or not is_reachable(api, _ANSWER_SECONDS):
        # What is refused at once costs nothing the next time.
        if asked >= _silent_until and time.monotonic() - asked > _POLL_SECONDS:
            _silent_until = time.monotonic() + _REST_SECONDS
        raise httpx.ConnectError(f"Prefect's server at {api} does not answer")


def server_is_there() -> bool:
    """Whether the server answers, found out within five seconds."""
    try:
        require_server()
    except httpx.ConnectError:
        return False
    return True


@contextmanager
def server_asked(failure: str, logger: "Logger | LoggerAdapter[Logger]") -> Iterator[SyncPrefectClient]:
    """Ask the server inside the block. What it refuses or does not answer is a warning: it must not stop a training.

    Args:
        failure: how the warning begins.
        logger: where it is logged.
    """
    try:
        # Inside a flow run this is the client with which Prefect reports the run's states: leaving does not close it.
        with get_client(sync_client=True) as client:
            yield client
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("%s: %s: %s", failure, type(error).__name__, error)


def retry_once() -> AbstractContextManager[Settings]:
    """Let each request to the server inside the block be tried twice, for ten seconds each, not for minutes.

    That is for a server that becomes unavailable meanwhile, and for one that says that it is well but answers nothing
    else.
    """
    return temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: _CALL_SECONDS})


def wait_for_server(seconds: float) -> bool:
    """Wait until the server answers, at most `seconds`, and return whether it does."""
    global _silent_until
    end = time.monotonic() + seconds
    while True:
        _silent_until = 0.0
        if server_is_there():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)


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
        with retry_once(), SyncClientContext():
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


logger = logging.getLogger(__name__)


def publish(written: "WrittenReport") -> str | None:
    """Show the verdict and figures of a report as an artifact; return its key, None without a server.

    A server that refuses it or does not answer is a warning: the report is written.
    """
    prepare_environment()
    if configured_api(os.environ) is None:
        return None
    # What Prefect reads for a hook or a form must not load torch.
    from eigen_core.reporting.report.summary import report_markdown
    from tasks.artifacts import publish_report

    report = written.report
    try:
        require_server()
        return publish_report(report.run, report_markdown(report, str(written.file.absolute())), report.sentence)
    except REFUSALS as error:
        logger.warning("Prefect has no page of the report: %s: %s", type(error).__name__, error)
        return None
