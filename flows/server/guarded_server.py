"""The process of the Prefect server that `eigen up` starts: `python -P -m flows.server.guarded_server HOST PORT`.

As `prefect server start` in the foreground, and it refuses web pages of other origins."""

import ipaddress
import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.server.prefect_internals import SERVER_IN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send


def guard(app: "FastAPI", host: str = "127.0.0.1") -> None:
    """Let an application of Prefect's refuse foreign pages. To be called before it is served.

    Origins are those of Prefect's setting PREFECT_SERVER_CORS_ALLOWED_ORIGINS. Names of this server are this machine's,
    `host`, and that of PREFECT_UI_API_URL. With a password it may be called by any name: a page does not know that.

    Args:
        app: Prefect's.
        host: at which it listens.
    """
    from prefect.settings import (
        PREFECT_SERVER_API_AUTH_STRING,
        PREFECT_SERVER_CORS_ALLOWED_ORIGINS,
        PREFECT_UI_API_URL,
    )

    names = {SERVER_IN_MEMORY, "localhost", socket.gethostname(), socket.getfqdn(), host}
    if (named := urlsplit(PREFECT_UI_API_URL.value() or "").hostname) is not None:
        names.add(named)
    origins = [origin.strip() for origin in PREFECT_SERVER_CORS_ALLOWED_ORIGINS.value().split(",")]
    has_password = PREFECT_SERVER_API_AUTH_STRING.value() is not None
    app.add_middleware(RequestGuard, names=None if has_password else names, origins=origins)


class RequestGuard:
    """Refuses requests and web sockets of foreign pages with status 403; an ASGI middleware.

    Args:
        app: what is guarded.
        names: by which the server may be called, beside IP addresses; None: by any.
        origins: of pages that may ask it, beside its own; `*`: of all.
    """

    def __init__(self, app: "ASGIApp", names: "Collection[str] | None", origins: "Collection[str]") -> None:
        self._app = app
        self._names = None if names is None else {name.lower() for name in names}
        self._origins = set(origins)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Pass on what may be asked."""
        reason = self._refusal(scope["headers"]) if scope["type"] in ("http", "websocket") else None
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(reason, status_code=403)(scope, receive, send)

    def _refusal(self, headers: "Collection[tuple[bytes, bytes]]") -> str | None:
        """Return why a request with these headers is refused; None: it is not."""
        hosts, origins = (
            [value.decode("latin-1") for name, value in headers if name == wanted] for wanted in (b"host", b"origin")
        )
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return (
                "This server is not called by this name. An address (127.0.0.1) works, and the name in "
                "PREFECT_UI_API_URL, if that was set where the server was started."
            )
        if any(not self._may_ask(origin, hosts[0]) for origin in origins):
            return (
                "This server answers its own pages alone. PREFECT_SERVER_CORS_ALLOWED_ORIGINS names others, if it is "
                "set where the server is started."
            )
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (self._names is None or name in self._names or _is_address(name))

    def _may_ask(self, origin: str, host: str) -> bool:
        return not self._origins.isdisjoint({"*", origin}) or origin in (f"http://{host}", f"https://{host}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def main() -> None:
    """Serve API and pages until the process is ended."""
    import uvicorn
    from prefect.settings import (
        PREFECT_SERVER_API_KEEPALIVE_TIMEOUT,
        PREFECT_SERVER_API_WEBSOCKET_PING_INTERVAL,
        PREFECT_SERVER_API_WEBSOCKET_PING_TIMEOUT,
        PREFECT_SERVER_LOGGING_LEVEL,
    )

    from flows.server.prefect_internals import server_app

    host, port = sys.argv[1:]
    app = server_app()
    guard(app, host)
    uvicorn.run(
        app,
        host=host,
        port=int(port),
        timeout_keep_alive=PREFECT_SERVER_API_KEEPALIVE_TIMEOUT.value(),
        ws_ping_interval=PREFECT_SERVER_API_WEBSOCKET_PING_INTERVAL.value(),
        ws_ping_timeout=PREFECT_SERVER_API_WEBSOCKET_PING_TIMEOUT.value(),
        log_level=PREFECT_SERVER_LOGGING_LEVEL.value().lower(),
    )


if __name__ == "__main__":
    main()
