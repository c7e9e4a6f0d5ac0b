"""Prefect artifacts (pages) that show a training run on Prefect's server, and the thread that sends them."""

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from http import HTTPStatus
from logging import Logger, LoggerAdapter
from typing import Self, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import SyncClientContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, Settings, temporary_settings

from flows.server.servers import answers

KINDS = ("data", "memory", "plan")
"""Kinds of artifacts that a training run has besides its overview, whose kind is the empty string."""

SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError)
"""Exceptions that a request to Prefect's server may raise. They are logged: they must not stop a training."""

_CALL_SECONDS = 10.0
_EVERY_SECONDS = 5.0

logger = logging.getLogger(__name__)


def artifact_key(run: str, kind: str = "") -> str:
    """Return the unique key (a-z, 0-9, dashes) of a run's artifact; `kind`: one of `KINDS`, or "" for the overview."""
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    # The overview of a run "mine-data" must not have the key of the data page of run "mine".
    if slug != run or slug.rpartition("-")[2] in KINDS:
        slug = f"{slug}-{hashlib.sha256(run.encode()).hexdigest()[:6]}".lstrip("-")
    return f"{slug}-{kind}" if kind else slug


class Artifacts:
    """Creates and updates the artifacts of one flow run, one per key. `show` may raise one of `SERVER_ERRORS`."""

    def __init__(self) -> None:
        self._ids: dict[str, UUID] = {}

    def show(self, key: str, markdown: str, description: str) -> None:
        known = self._ids.get(key)
        if known is None or not _update(known, markdown, description):
            found = create_markdown_artifact(key=key, markdown=markdown, description=description)
            # Synchronous callers get the artifact's id, asynchronous ones a coroutine.
            self._ids[key] = cast(UUID, found)


def _update(artifact: UUID, markdown: str, description: str) -> bool:
    """Replace an artifact's text and description; return false if the server no longer has the artifact."""
    content = {"data": markdown, "description": description}
    try:
        # `update_artifact` would also send the content, with its pictures, as an event, which the server stores.
        get_client(sync_client=True).request("PATCH", "/artifacts/{id}", path_params={"id": artifact}, json=content)
    except httpx.HTTPStatusError as error:
        if error.response.status_code != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def server_is_there() -> bool:
    """Return whether the Prefect server that this process uses answers within five seconds."""
    return answers(str(get_client(sync_client=True).api_url).rstrip("/"))


def require_server() -> None:
    """Raise `httpx.ConnectError` at once if the server is unavailable; Prefect's client would retry for a minute."""
    if not server_is_there():
        raise httpx.ConnectError("Prefect's server does not answer")


@contextmanager
def client_or_warning(failure: str, logger: "Logger | LoggerAdapter[Logger]") -> Iterator[SyncPrefectClient]:
    """Open a client of Prefect's server; log `SERVER_ERRORS` of the block as a warning that begins with `failure`."""
    try:
        # Inside a flow run, Prefect reports the states of the flow run with this client; `with` does not close it.
        with get_client(sync_client=True) as client:
            yield client
    except SERVER_ERRORS as error:
        logger.warning("%s: %s: %s", failure, type(error).__name__, error)


def retry_once() -> AbstractContextManager[Settings]:
    """Inside the block, try each request to Prefect's server at most twice, for ten seconds each, not for minutes."""
    return temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: _CALL_SECONDS})


class Reporter:
    """Context manager whose thread sends reports on a run to Prefect's server, at most every 5 s and at its end.

    A report is a function that sends requests, and has a kind: any word. Of the waiting reports of a kind, the thread
    calls only the newest. It logs their `SERVER_ERRORS`; while the server is unavailable, it logs that once and drops
    all reports. Any other error ends the thread, and is raised by the next `report` or at the end of the block.
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
        self._sender = self._threads.submit(copy_context().run, self._send_until_end)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._threads.shutdown()
        if error is None:
            self._raise()

    def report(self, kind: str, send: Callable[[], None]) -> None:
        """Let the thread call `send`, which may raise `SERVER_ERRORS`; drop a waiting report of the same kind."""
        self._raise()
        with self._changed:
            self._waiting.pop(kind, None)
            self._waiting[kind] = send
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._sender is not None and self._sender.done():
            self._sender.result()

    def _send_until_end(self) -> None:
        # This thread needs its own client: the one in the flow run's context belongs to the thread that trains.
        with retry_once(), SyncClientContext():
            while reports := self._next():
                self._send_batch(reports)

    def _next(self) -> list[Callable[[], None]]:
        """Wait for reports, and return them; after the end of the `with` block, return an empty list if none wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            reports, self._waiting = list(self._waiting.values()), {}
        return reports

    def _send_batch(self, reports: list[Callable[[], None]]) -> None:
        began = time.monotonic()
        for send in (require_server, *reports):
            try:
                send()
                self._unavailable = False
            except SERVER_ERRORS as error:
                if not self._unavailable:
                    get_run_logger().warning(
                        "Run %s continues, but its pages are outdated: %s: %s", self._run, type(error).__name__, error
                    )
                # Without an answer, every further report would wait for a timeout: drop them.
                self._unavailable = isinstance(error, httpx.TransportError)
                if self._unavailable:
                    break
        with self._changed:
            self._changed.wait_for(lambda: self._ended, _EVERY_SECONDS - (time.monotonic() - began))
