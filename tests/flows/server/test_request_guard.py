"""A server on this machine answers its own pages alone, whatever a browser shows beside them."""

from collections.abc import Mapping

import pytest
from fastapi import FastAPI
from prefect.server.api.clients import OrchestrationClient
from prefect.server.api.server import create_app
from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, PREFECT_SERVER_CORS_ALLOWED_ORIGINS, temporary_settings
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flows.server.environment import own_origins
from flows.server.servers import guard

HERE = "127.0.0.1:4200"


@pytest.fixture(scope="module")
def client() -> TestClient:
    """Prefect's own server as `eigen up` starts it; nothing that it would serve needs a database."""
    with temporary_settings({PREFECT_SERVER_CORS_ALLOWED_ORIGINS: own_origins({}, 4200)}):
        app = create_app(final=True, ignore_cache=True)
        guard(app)
    return TestClient(app)


def status(client: TestClient, headers: Mapping[str, str], method: str = "GET") -> int:
    """What a request with these headers gets."""
    return int(client.request(method, "/api/health", headers=headers).status_code)


@pytest.mark.parametrize("host", [HERE, "localhost:4200", "LOCALHOST", "[::1]:4200", "192.168.1.7:4200"])
def test_the_server_is_asked_by_names_of_its_own(client: TestClient, host: str) -> None:
    assert status(client, {"Host": host}) == 200
    assert status(client, {"Host": host, "Origin": f"http://{host}"}) == 200


def test_the_server_itself_asks_it_as_when_an_automation_resumes(client: TestClient) -> None:
    assert status(client, {"Host": str(OrchestrationClient()._http_client.base_url.host)}, "GET") == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4200", "127.0.0.1.evil.example", "", "[::1", "a:b:c"])
def test_a_name_that_was_pointed_at_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert status(client, {"Host": host}) == 403
    assert status(client, {"Host": host, "Origin": f"http://{host}"}, "POST") == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:4201", "http://127.0.0.1:4200.evil.example", ""]
)
def test_a_page_of_another_origin_is_refused(client: TestClient, origin: str) -> None:
    headers = {"Host": HERE, "Origin": origin}
    assert status(client, headers, "POST") == 403
    assert status(client, headers) == 403
    asked = {**headers, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    found = client.options("/api/deployments/filter", headers=asked)
    assert found.status_code == 403
    assert "access-control-allow-origin" not in found.headers
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/events/out", headers=headers):
        pass


def test_its_own_pages_may_ask_it_under_each_of_its_names(client: TestClient) -> None:
    for name in ("localhost", "127.0.0.1"):
        headers = {"Host": HERE, "Origin": f"http://{name}:4200"}
        assert status(client, headers) == 200
        found = client.options("/api/health", headers={**headers, "Access-Control-Request-Method": "GET"})
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, f"http://{name}:4200")


def test_pages_behind_a_proxy_are_named() -> None:
    environ = {"PREFECT_UI_API_URL": "https://eigen.example/api"}
    assert own_origins(environ, 4300).split(",") == [
        "http://127.0.0.1:4300",
        "http://localhost:4300",
        "http://[::1]:4300",
        "https://eigen.example",
    ]


def test_a_server_with_a_password_is_called_by_any_name_but_not_from_any_page() -> None:
    app = FastAPI()
    app.get("/api/health")(lambda: True)
    with temporary_settings(
        {PREFECT_SERVER_API_AUTH_STRING: "user:password", PREFECT_SERVER_CORS_ALLOWED_ORIGINS: "http://pages.example"}
    ):
        guard(app)
    asked = TestClient(app)
    assert status(asked, {"Host": "anything.example"}) == 200
    assert status(asked, {"Host": "anything.example", "Origin": "http://pages.example"}) == 200
    assert status(asked, {"Host": "anything.example", "Origin": "http://other.example"}) == 403


def test_two_names_are_none(client: TestClient) -> None:
    found = client.get("/api/health", headers=[("Host", HERE), ("Host", HERE)])
    assert found.status_code == 403
