"""Whether an API answers, asked without Prefect, which takes seconds to import."""

import json
import socket
import ssl
import urllib.error
import urllib.request

from flows.operations.home import Home

_ANSWER_SECONDS = 5.0


def is_up(home: Home) -> bool:
    """Whether the worker runs, its server answers, and what restarts them has not ended."""
    worker = home.running("worker")
    return worker is not None and is_supervised(home) and answers(worker.api)


def is_supervised(home: Home) -> bool:
    """Whether the supervisor that was started here, if any was, has not ended."""
    return home.read("supervisor") is None or home.running("supervisor") is not None


def answers(api: str, seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether Prefect's API at this URL says that it is well."""
    return _get(f"{api}/health", seconds) is True


def is_reachable(api: str, seconds: float) -> bool:
    """Whether anything answers at the URL of an API, be it that who asks is not known to it."""
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False


def version(api: str) -> str | None:
    """Return the version of the server at this URL, None if it says none."""
    found = _get(f"{api}/admin/version", _ANSWER_SECONDS)
    return found if isinstance(found, str) else None


def is_taken(host: str, port: int) -> bool:
    """Whether some process listens at a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _get(url: str, seconds: float) -> object:
    try:
        # The address is the user's own setting, and nothing but JSON is made of the answer.
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            found: object = json.load(answer)
            return found
    except (OSError, ValueError, urllib.error.URLError):
        return None
