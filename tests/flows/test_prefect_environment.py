"""The environment that the command line gives Prefect: defaults only, the user's own values stay."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flow_cases import eigen_environment

from flows.cli.signals import StopSignals, stop_signals
from flows.prefect_environment import prepare_environment


def test_only_what_the_user_has_not_set_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_TASKS_DEFAULT_NO_CACHE", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "7")
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "true")
    before = dict(os.environ)
    prepare_environment()
    assert os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] == "7"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "true"
    assert os.environ["PREFECT_TASKS_DEFAULT_NO_CACHE"] == "true"
    assert "PREFECT_API_URL" not in os.environ
    for name in set(os.environ) - set(before):
        monkeypatch.delenv(name)


def test_the_first_signal_of_a_training_raises_and_is_remembered() -> None:
    def training() -> None:
        with signals.raising():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    with stop_signals() as signals:
        with pytest.raises(KeyboardInterrupt):
            training()
        assert signals.requested
        with pytest.raises(KeyboardInterrupt):
            signals.check()


def test_without_a_signal_nothing_stops() -> None:
    former = signal.getsignal(signal.SIGINT)
    with stop_signals() as signals:
        signals.check()
        assert signal.getsignal(signal.SIGINT) != former
    assert signal.getsignal(signal.SIGINT) == former
    StopSignals().check()


def test_what_was_ignored_stays_ignored() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_signals():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", ["", "signals.requested = signals._gentle = True"])
def test_before_a_training_and_the_second_time_a_signal_ends_the_process_at_once(
    number: signal.Signals, before: str
) -> None:
    code = f"""
import os, time
from flows.cli.signals import stop_signals
with stop_signals() as signals:
    signals.before_leaving(lambda: os.write(1, b"last"))
    {before}
    os.kill(os.getpid(), {int(number)})
    time.sleep(5)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "last", "eigen: Stopped.\n")


@pytest.mark.thorough
def test_an_embedded_server_that_cannot_start_is_named(tmp_path: Path) -> None:
    code = """
from flows.endings import Stopped
from flows.prefect_environment import PrefectServer, prepare_environment
prepare_environment()
server = PrefectServer()
server.start()
try:
    server.wait_until_ready()
except Stopped as error:
    print(error)
"""
    environment = {**eigen_environment(tmp_path / "home"), "PREFECT_API_DATABASE_CONNECTION_URL": "nonsense://"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert "Prefect's embedded server ended with status" in ended.stdout, ended.stderr


@pytest.mark.thorough
def test_a_server_that_was_loaded_and_is_not_needed_ends(tmp_path: Path) -> None:
    code = """
import psutil
from flows.prefect_environment import PrefectServer, prepare_environment
prepare_environment()
server = PrefectServer()
server.prepare()
(loading,) = psutil.Process().children()
server.start()
print(loading.wait(60) is not None, psutil.Process().children())
"""
    environment = {**eigen_environment(tmp_path / "home"), "PREFECT_API_URL": "http://127.0.0.1:1/api"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert ended.stdout == "True []\n", ended.stderr


@pytest.mark.thorough
def test_an_embedded_server_is_not_the_users_own_and_ends_with_its_process(tmp_path: Path) -> None:
    code = """
from flows.prefect_environment import PrefectServer, prepare_environment
from flows.run_plan import api_url
prepare_environment()
server = PrefectServer()
server.prepare()
server.start()
server.wait_until_ready()
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(client.api_healthcheck(), client.server_type.name, api_url())
"""
    environment = {**eigen_environment(tmp_path), "EIGEN_CACHE": str(tmp_path / "cache")}
    keeping = [sys.executable, "-P", "-m", "flows.embedded_server"]
    subprocess.run(keeping, env=environment, check=True, capture_output=True, timeout=120)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert ended.stdout.split() == ["None", "SERVER", "None"], ended.stderr
    # Its database began as a copy of the one that is kept, and needed no migration.
    (kept,) = (tmp_path / "cache" / "prefect").iterdir()
    (used,) = tmp_path.rglob("prefect.db")
    heads = [
        sqlite3.connect(path).execute("SELECT version_num FROM alembic_version").fetchall() for path in (kept, used)
    ]
    assert heads[0] == heads[1]
