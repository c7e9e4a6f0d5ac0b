"""Whether Prefect's server answers: a training does not wait for one that is unavailable."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from logging import Logger, LoggerAdapter

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, Settings, temporary_settings

from flows.operations.health import is_reachable

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


def asked_twice() -> AbstractContextManager[Settings]:
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
