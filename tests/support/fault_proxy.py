"""A proxy before the emulator of Google Cloud Storage that does to requests what networks and services do to them."""

import asyncio
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
from aiohttp import ClientSession, ClientTimeout, web
from gcs_emulator import GcsEmulator
from yarl import URL

_LARGEST_REQUEST = 256 << 20
_HOP_BY_HOP = {"transfer-encoding", "connection", "keep-alive", "content-length"}

Kind = Literal[
    "status",  # answer with `status`, forward nothing
    "reset",  # reset the connection, forward nothing
    "lost_reply",  # forward, then reset the connection instead of answering
    "stall",  # say nothing for `seconds` or until the faults are cleared, then forward
    "cut",  # send the first half of the reply's content, then reset the connection
    "flip_request",  # change one byte of what is sent
    "flip_reply",  # change one byte of the reply's content
]


@dataclass
class Fault:
    """A fault of requests whose method and path (with query, percent signs as sent) match two expressions.

    Attributes:
        after: number of requests that are let through before.
        times: number of requests that have it; None: all.
        where: byte that is flipped: 0 the first, 1 the last.
    """

    kind: Kind
    method: str = ""
    path: str = ""
    after: int = 0
    times: int | None = 1
    probability: float = 1.0
    status: int = 503
    message: str = "injected"
    seconds: float = 3600.0
    where: float = 0.5


class FaultProxy:
    """A proxy in a thread of this process; `hook` is called before each request with its number, method and path."""

    def __init__(self, target: str) -> None:
        self.hook: Callable[[int, str, str], None] | None = None
        self.requests: list[tuple[str, str]] = []
        self._target = target
        self._numbers = random.Random(0)
        self._faults: list[Fault] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)

    def add(self, *faults: Fault) -> None:
        """Do this to later requests; of several faults that fit one, the first is taken."""
        self._faults += faults

    def clear(self) -> None:
        self._faults = []

    def seed(self, seed: int) -> None:
        self._numbers = random.Random(seed)

    def count(self, method: str = "", path: str = "") -> int:
        return sum(bool(re.match(method, made) and re.search(path, to)) for made, to in self.requests)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> str:
        self._client = ClientSession(auto_decompress=False, timeout=ClientTimeout(total=None))
        application = web.Application(client_max_size=_LARGEST_REQUEST)
        application.router.add_route("*", "/{rest:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{port}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._client.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        path = request.raw_path
        self.requests.append((request.method, path))
        if self.hook is not None:
            self.hook(len(self.requests), request.method, path)
        fault = self._fault_for(request.method, path)
        kind = fault.kind if fault else None
        if fault is None:
            return _plain(await self._forward(request, body))
        if kind == "status":
            error = {"error": {"code": fault.status, "message": fault.message}}
            return web.json_response(error, status=fault.status)
        if kind == "reset":
            return _reset(request)
        if kind == "stall":
            await self._stall(fault)
        if kind == "flip_request":
            body = _flipped(body, fault.where)
        status, headers, content = await self._forward(request, body)
        if kind == "lost_reply":
            return _reset(request)
        if kind == "flip_reply":
            content = _flipped(content, fault.where)
        if kind != "cut":
            return _plain((status, headers, content))
        answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(content))})
        await answer.prepare(request)
        await answer.write(content[: len(content) // 2])
        return _reset(request, answer)

    async def _stall(self, fault: Fault) -> None:
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end and any(kept is fault for kept in self._faults):
            await asyncio.sleep(0.01)

    def _fault_for(self, method: str, path: str) -> Fault | None:
        for fault in self._faults:
            if not (re.match(fault.method, method) and re.search(fault.path, path)) or fault.times == 0:
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            if self._numbers.random() >= fault.probability:
                continue
            if fault.times is not None:
                fault.times -= 1
            return fault
        return None

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        # The emulator builds addresses in its answers from the host that was asked, which must stay the proxy.
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = URL(self._target + request.raw_path, encoded=True)
        async with self._client.request(
            request.method, url, headers=headers, data=body, allow_redirects=False
        ) as answer:
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            return answer.status, kept, content


@pytest.fixture
def fault_proxy(gcs_emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    proxy = FaultProxy(gcs_emulator.url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    yield proxy
    proxy.stop()


def _plain(answer: tuple[int, dict[str, str], bytes]) -> web.Response:
    status, headers, content = answer
    return web.Response(status=status, headers=headers, body=content)


def _reset(request: web.Request, answer: web.StreamResponse | None = None) -> web.StreamResponse:
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return answer or web.Response()


def _flipped(content: bytes, where: float) -> bytes:
    if not content:
        return content
    at = min(int(len(content) * where), len(content) - 1)
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
