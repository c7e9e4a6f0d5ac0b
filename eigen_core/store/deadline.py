"""Doing something that may never come back, for a limited time."""

import threading
from collections.abc import Callable

from eigen_core.store.interface import StoreUnavailableError


def within(seconds: float, action: Callable[[], None], late: str) -> None:
    """Do `action` in a thread of its own and wait for it no longer than `seconds`.

    What does not come back is left behind: a call into a dead network file system cannot be interrupted.

    Raises:
        StoreUnavailableError: it did not come back in time; the message is `late`.
        Exception: what `action` raised.
    """
    failures: list[Exception] = []

    def attempt() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - it is raised again, whatever it is, where it was asked for
            failures.append(error)

    thread = threading.Thread(target=attempt, name="eigen-store-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StoreUnavailableError(late)
    if failures:
        raise failures[0]
