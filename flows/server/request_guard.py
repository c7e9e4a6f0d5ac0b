"""Middleware of Prefect's server that refuses requests of foreign web pages: of other origins, or to another host."""

import ipaddress
import socket
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.server.prefect_internals import SERVER_IN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send


def refuse_foreign_pages(app: "FastAPI", host: str = "127.0.0.1") -> None:
    """Let `app`, Prefect's application, refuse requests of foreign web pages; call this before `app` is served.

    Pages of PREFECT_SERVER_CORS_ALLOWED_ORIGINS are allowed. The Host header of a request must be an IP address, a name
    of this machine, the `host` at which the server listens, or the host of PREFECT_UI_API_URL. With a password, which a
    foreign page does not know, it may be any name.
    """
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, PREFECT_SERVER_CORS_ALLOWED_ORIGINS, PREFECT_UI_API_URL

    names = {SERVER_IN_MEMORY, "localhost", socket.gethostname(), socket.getfqdn(), host}
    if (named := urlsplit(PREFECT_UI_API_URL.value() or "").hostname) is not None:
        names.add(named)
    origins = [origin.strip() for origin in PREFECT_SERVER_CORS_ALLOWED_ORIGINS.value().split(",")]
    has_password = PREFECT_SERVER_API_AUTH_STRING.value() is not None
    app.add_middleware(RequestGuard, names=None if has_password else names, origins=origins)


class RequestGuard:
    """ASGI middleware that refuses requests (status 403) and web sockets (code 1008) of foreign web pages.

    Args:
        names: host names that a Host header may have, besides IP addresses; None: any name.
        origins: origins (`scheme://host:port`) whose pages may send requests, besides the server's own; `*`: all.
    """

    def __init__(self, app: "ASGIApp", names: "Collection[str] | None", origins: "Collection[str]") -> None:
        self._app = app
        self._names = None if names is None else {name.lower() for name in names}
        self._origins = set(origins)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        reason = self._refusal(scope["headers"]) if scope["type"] in ("http", "websocket") else None
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(reason, status_code=403)(scope, receive, send)

    def _refusal(self, headers: "Collection[tuple[bytes, bytes]]") -> str | None:
        hosts, origins = (
            [value.decode("latin-1") for name, value in headers if name == wanted] for wanted in (b"host", b"origin")
        )
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return (
                "Prefect's server does not accept this host name. Use its IP address (127.0.0.1), or start it with "
                "PREFECT_UI_API_URL set to an address with this name."
            )
        allowed = self._origins | {f"http://{hosts[0]}", f"https://{hosts[0]}"}
        if "*" not in allowed and not allowed.issuperset(origins):
            return (
                "Prefect's server only answers its own pages. To allow others, start it with "
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS set to their origins, such as https://example.org:8080."
            )
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (self._names is None or name in self._names or _is_address(name))


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False
