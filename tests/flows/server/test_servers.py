"""Servers: their environment, which one is used, what is refused before one starts, and which pages one answers."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import prefect.concurrency._leases
import prefect.flow_engine
import pytest
from fastapi import FastAPI
from flow_cases import eigen_environment, run_eigen
from operation_cases import ROOT, answering, digest, record_of, sleeping
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_API_AUTH_STRING,
    PREFECT_SERVER_CORS_ALLOWED_ORIGINS,
    PREFECT_SERVER_EVENTS_CAUSAL_ORDERING,
    Settings,
    temporary_settings,
)
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from eigen_core.common.errors import InputError
from eigen_core.common.process import set_umask
from flows.server import servers
from flows.server.deployments import enter
from flows.server.prefect_internals import RELEASE, keep_training_without_slot
from flows.server.prefect_settings import own_origins, server_environment, worker_environment
from flows.server.request_guard import refuse_foreign_pages
from flows.server.state_directory import Component, StateDirectory
from flows.server.up import bring_up

NOWHERE = "http://127.0.0.1:1/api"


def test_the_server_has_the_settings_that_resumes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PREFECT_API_URL": "http://elsewhere/api", "PREFECT_HOME": "/home/prefect", "PATH": "/bin"}
    environment = server_environment(given, 4300)
    assert "PREFECT_API_URL" not in environment
    assert {"PREFECT_HOME": "/home/prefect", "PATH": "/bin"}.items() <= environment.items()
    proxied = server_environment({"PREFECT_UI_API_URL": "https://proxy/api"}, 4300)
    assert proxied["PREFECT_UI_API_URL"] == "https://proxy/api"
    assert "https://proxy" in proxied["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    # They are Prefect's own names.
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server = Settings().server
    assert server.concurrency.lease_storage == "prefect.server.concurrency.lease_storage.filesystem"
    assert server.ui.api_url == "http://127.0.0.1:4300/api"
    assert not server.analytics_enabled
    vacuum = server.services.db_vacuum
    assert all(kept.total_seconds() <= 60 for kept in vacuum.event_retention_overrides.values())
    assert vacuum.enabled_vacuum_types == {"events"}
    assert server.flow_run_graph.max_nodes == 1_000


def test_the_worker_and_its_flows_have_what_every_flow_needs(tmp_path: Path) -> None:
    environment = worker_environment({"MALLOC_ARENA_MAX": "7", "PREFECT_API_URL": "old"}, NOWHERE, tmp_path)
    assert environment["MALLOC_ARENA_MAX"] == "7"
    assert environment["PREFECT_API_URL"] == NOWHERE
    assert environment["PREFECT_UI_URL"] == "http://127.0.0.1:1"
    assert environment["EIGEN_FOLDER"] == str(tmp_path)
    assert environment["PREFECT_TASKS_DEFAULT_NO_CACHE"] == "true"


def test_flows_work_where_the_worker_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGEN_FOLDER", "")
    monkeypatch.setenv("PWD", str(tmp_path))
    # The flow is loaded in another folder, and changes to this one.
    assert enter() == {"directory": "."}
    code = "import flows.server.flows, os; print(os.getcwd())"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(tmp_path)


def test_a_server_of_our_own_is_known_without_being_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server of this session's flows, if there is one.
    monkeypatch.setattr("flows.server.servers._prefects_api", lambda: None)
    home = StateDirectory(tmp_path)
    with pytest.raises(InputError, match=r"start one with `eigen up`, or set PREFECT_API_URL"):
        servers.known_server(home, {})
    with answering() as api, sleeping() as process:
        home.write("server", record_of(home, process.pid, api))
        assert servers.known_server(home, {}) == api
        assert servers.known_server(home, {"PREFECT_API_URL": api.replace("127.0.0.1", "localhost")}) == api
        with pytest.raises(InputError, match=r"http://127.0.0.1:1/api does not answer"):
            servers.known_server(home, {"PREFECT_API_URL": NOWHERE})
        home.write("server", record_of(home, process.pid, NOWHERE))
        assert servers.known_server(home, {"PREFECT_API_URL": f"{api}/"}) == api
        with pytest.raises(InputError, match=r"does not answer. Its log is .*some\.log"):
            servers.known_server(home, {})


def test_a_password_in_the_address_of_a_server_is_refused() -> None:
    with pytest.raises(InputError, match="set PREFECT_API_AUTH_STRING") as refused:
        servers.configured_api({"PREFECT_API_URL": "http://me:hunter2@elsewhere.example/api"})
    assert "hunter2" not in str(refused.value)


def test_a_training_in_the_folder_of_a_server_uses_it_unless_the_user_names_another(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    environ = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_API_AUTH_STRING": "me:secret"}
    assert servers.server_for_training(home, environ) == {}
    with answering() as api, sleeping() as process:
        home.write("server", record_of(home, process.pid, api))
        found = servers.server_for_training(home, environ)
        assert found["PREFECT_API_URL"] == api
        assert found["PREFECT_API_AUTH_STRING"] == "me:secret"
        given = {**environ, "PREFECT_API_AUTH_STRING": "you:other"}
        assert servers.server_for_training(home, given)["PREFECT_API_AUTH_STRING"] == "you:other"
        assert servers.server_for_training(home, {**environ, "PREFECT_API_URL": NOWHERE}) == {}
        (tmp_path / "prefect").mkdir()
        (tmp_path / "prefect" / "profiles.toml").write_text(f'[profiles.far]\nPREFECT_API_URL = "{NOWHERE}"\n')
        assert servers.server_for_training(home, environ) == {}
        home.write("server", record_of(home, process.pid, NOWHERE))
        assert servers.server_for_training(home, {"PREFECT_HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize(
    ("given", "configured", "environ", "last", "wanted"),
    [
        (None, None, {"PREFECT_SERVER_API_PORT": "4201"}, 4300, 4201),
        (4300, None, {}, 4201, 4300),
        (None, "http://localhost:9/api", {}, 4300, 9),
        (None, "https://elsewhere.example:4200/api", {}, 4300, None),
        (None, None, {}, 4300, 4300),
    ],
)
def test_where_a_server_of_our_own_belongs(
    given: int | None, configured: str | None, environ: dict[str, str], last: int | None, wanted: int | None
) -> None:
    assert servers.wanted_port(given, configured, environ, last) == wanted


@pytest.mark.parametrize("component", ["server", "worker"])
def test_a_server_does_not_move_away_from_what_runs_here(tmp_path: Path, component: Component) -> None:
    home = StateDirectory(tmp_path)
    with sleeping() as process:
        home.write(component, record_of(home, process.pid, NOWHERE))
        with pytest.raises(InputError, match=f"A {component} runs here already, at .*: leave out --port"):
            bring_up(home, {}, servers.ListenOptions(port=4301), print)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7"])
def test_a_server_that_others_reach_needs_a_password_or_a_second_option(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    with pytest.raises(
        InputError, match=r"set PREFECT_SERVER_API_AUTH_STRING=user:password, or add --without-password"
    ):
        servers.require_startable({}, 4300, servers.ListenOptions(host))
    monkeypatch.setattr("flows.server.servers.is_port_in_use", lambda *_: True)
    for environ, listening in (
        ({"PREFECT_SERVER_API_AUTH_STRING": "me:secret"}, servers.ListenOptions(host)),
        ({}, servers.ListenOptions(host, without_password=True)),
    ):
        with pytest.raises(InputError, match="Another process uses port 4300"):
            servers.require_startable(environ, 4300, listening)


@pytest.mark.parametrize(
    ("answer", "answers"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\ntrue", True),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", False),
        (b"SSH-2.0-x\r\n", False),
    ],
)
def test_what_answers_at_an_address_may_be_no_api(answer: bytes, answers: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def say() -> None:
            with server.accept()[0] as connection:
                connection.recv(4_096)
                connection.sendall(answer)

        threading.Thread(target=say, daemon=True).start()
        assert servers.answers(f"http://127.0.0.1:{server.getsockname()[1]}/api") is answers
    assert not servers.answers(NOWHERE)


def test_a_port_that_contradicts_the_environment_is_a_sentence() -> None:
    with pytest.raises(InputError, match="leave out --port, or remove that URL"):
        servers.wanted_port(4300, "http://127.0.0.1:4200/api", {})


def test_a_port_that_is_taken_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with answering() as api:
        port = int(api.split(":")[2].removesuffix("/api"))
        with pytest.raises(InputError, match=f"Another process uses port {port}"):
            bring_up(StateDirectory(tmp_path / "home"), {}, servers.ListenOptions(port=port), print, only="server")
    assert list(tmp_path.iterdir()) == []


NO_DATABASES = {
    "text": "cannot be read",
    "folder": "it is a folder",
    "of others": "its tables are not Prefect's",
    "of a later version": "is the database of another version of Prefect",
}
"""Kinds of files that this release of Prefect cannot use as its database, and a part of the refusal."""


def make_database(path: Path, kind: str) -> None:
    if kind == "text":
        path.write_text("dear diary, " * 1_000)
    elif kind == "folder":
        path.mkdir()
    else:
        table = "diary" if kind == "of others" else "alembic_version"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE {table} (version_num TEXT)")
            connection.execute(f"INSERT INTO {table} VALUES ('0123456789ab')")


@pytest.mark.parametrize("kind", NO_DATABASES)
def test_what_is_no_database_of_this_prefect_is_refused(tmp_path: Path, kind: str) -> None:
    make_database(tmp_path / "prefect.db", kind)
    url = f"sqlite+aiosqlite:///{tmp_path / 'prefect.db'}"
    with (
        temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: url}),
        pytest.raises(InputError, match=NO_DATABASES[kind]),
    ):
        servers.require_database()


@pytest.mark.parametrize("trouble", ["home", "database"])
@pytest.mark.thorough
def test_what_prefect_cannot_use_is_refused_before_anything_starts_and_doctor_fails_on_it(
    tmp_path: Path, trouble: str
) -> None:
    environment = eigen_environment(tmp_path / "prefect", EIGEN_HOME=str(tmp_path / "state"))
    part = "correct HOME, or set PREFECT_HOME"
    (tmp_path / "prefect").mkdir()
    if trouble == "home":
        del environment["PREFECT_HOME"]
        environment["HOME"] = str(tmp_path / "file" / "home")
        (tmp_path / "file").write_text("no folder")
    else:
        part = NO_DATABASES["of a later version"]
        make_database(tmp_path / "prefect" / "prefect.db", "of a later version")
    before = digest(tmp_path)
    ended = run_eigen(["up"], environment=environment, folder=tmp_path, code=2)
    assert part in ended.stderr
    assert "set PREFECT_HOME" in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert digest(tmp_path) == before
    ended = run_eigen(["doctor", "--json"], environment=environment, folder=tmp_path, code=1)
    failed = [check["found"] for check in json.loads(ended.stdout)["checks"] if check["status"] == "failed"]
    assert [part in found for found in failed] == [True], failed


HERE = "127.0.0.1:4200"


@pytest.fixture(scope="module")
def client() -> TestClient:
    """Prefect's own server as `eigen up` starts it; nothing that it would serve needs a database."""
    from prefect.server.api.server import create_app  # takes seconds, which only these tests are to wait for

    with temporary_settings({PREFECT_SERVER_CORS_ALLOWED_ORIGINS: own_origins({}, 4200)}):
        app = create_app(final=True, ignore_cache=True)
        refuse_foreign_pages(app)
    return TestClient(app)


def status(client: TestClient, headers: Mapping[str, str], method: str = "GET") -> int:
    return int(client.request(method, "/api/health", headers=headers).status_code)


@pytest.mark.parametrize("host", [HERE, "LOCALHOST", "[::1]:4200", "192.168.1.7:4200"])
def test_the_server_answers_to_names_of_its_own(client: TestClient, host: str) -> None:
    from prefect.server.api.clients import OrchestrationClient

    assert status(client, {"Host": host}) == 200
    assert status(client, {"Host": host, "Origin": f"http://{host}"}) == 200
    # As when an automation resumes.
    assert status(client, {"Host": str(OrchestrationClient()._http_client.base_url.host)}) == 200


@pytest.mark.parametrize("host", ["evil.example:4200", "127.0.0.1.evil.example", "", "[::1", "a:b:c"])
def test_a_name_that_was_pointed_at_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert status(client, {"Host": host}) == 403
    assert status(client, {"Host": host, "Origin": f"http://{host}"}, "POST") == 403
    twice = client.get("/api/health", headers=[("Host", HERE), ("Host", HERE)])
    assert twice.status_code == 403


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:4201", 403),
        ("http://127.0.0.1:4200.evil.example", 403),
        ("", 403),
        ("http://localhost:4200", 200),
        ("http://127.0.0.1:4200", 200),
    ],
)
def test_only_its_own_pages_may_ask_it(client: TestClient, origin: str, code: int) -> None:
    headers = {"Host": HERE, "Origin": origin}
    assert status(client, headers) == code
    asked = {**headers, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "content-type"}
    found = client.options("/api/health", headers=asked)
    assert found.status_code == code
    assert found.headers.get("access-control-allow-origin") == (origin if code == 200 else None)
    if code == 403:
        assert status(client, headers, "POST") == 403
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/events/out", headers=headers):
            pass


def test_a_server_with_a_password_is_called_by_any_name_but_not_from_any_page() -> None:
    app = FastAPI()
    app.get("/api/health")(lambda: True)
    with temporary_settings(
        {PREFECT_SERVER_API_AUTH_STRING: "user:password", PREFECT_SERVER_CORS_ALLOWED_ORIGINS: "http://pages.example"}
    ):
        refuse_foreign_pages(app)
    asked = TestClient(app)
    assert status(asked, {"Host": "anything.example"}) == 200
    assert status(asked, {"Host": "anything.example", "Origin": "http://pages.example"}) == 200
    assert status(asked, {"Host": "anything.example", "Origin": "http://other.example"}) == 403


def test_the_release_is_the_one_that_was_looked_through() -> None:
    assert version("prefect") == RELEASE, "look through flows/server/prefect_internals.py, then name this release there"


def test_a_slot_that_is_lost_ends_no_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "maintain_concurrency_lease"
    monkeypatch.setattr(prefect.flow_engine, name, getattr(prefect.flow_engine, name))
    maintain = Mock()
    monkeypatch.setattr(prefect.concurrency._leases, name, maintain)
    keep_training_without_slot()
    lease = uuid4()
    # As Prefect's engine does.
    vars(prefect.flow_engine)[name](lease, 300, raise_on_lease_renewal_failure=True)
    maintain.assert_called_once_with(lease, 300, raise_on_lease_renewal_failure=False)


def test_an_event_is_evaluated_though_the_server_has_not_seen_the_one_before() -> None:
    from prefect.server.events.ordering import get_triggers_causal_ordering
    from prefect.server.events.schemas.events import ReceivedEvent, Resource

    now = datetime.now(UTC)
    event = ReceivedEvent(occurred=now, event="crashed", resource=Resource({"prefect.resource.id": "mine"}), id=uuid4())
    module = server_environment({}, 4300)["PREFECT_SERVER_EVENTS_CAUSAL_ORDERING"]

    async def evaluate() -> None:
        follower = event.model_copy(update={"follows": uuid4()})
        # Prefect's own raises `EventArrivedEarly`.
        async with get_triggers_causal_ordering().preceding_event_confirmed(Mock(), follower):
            pass

    with temporary_settings({PREFECT_SERVER_EVENTS_CAUSAL_ORDERING: module}):
        asyncio.run(evaluate())


@pytest.fixture
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


WRONG = ("8", "999", "rwx", "0o27", "07777", "-27")


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize(("given", "umask"), [("", 0o077), ("027", 0o027), *((wrong, None) for wrong in WRONG)])
def test_only_the_owner_reads_unless_the_user_allows_more(given: str, umask: int | None) -> None:
    refused = pytest.raises(InputError, match=r"EIGEN_UMASK is .* three octal digits")
    with nullcontext() if umask is not None else refused:
        set_umask({"EIGEN_UMASK": given})
    assert os.umask(0) == (0o022 if umask is None else umask)
