"""The environment that the command line gives Prefect: defaults only, the user's own values stay."""

import os
import signal
import subprocess
import sys
import time

import pytest

from flows.cli.display import StopSignals, stop_signals
from flows.server.environment import prepare_environment


def test_only_what_the_user_has_not_set_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_TASKS_DEFAULT_NO_CACHE", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "true")
    before = dict(os.environ)
    prepare_environment()
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
from flows.cli.display import stop_signals
with stop_signals() as signals:
    signals.before_leaving(lambda: os.write(1, b"last"))
    {before}
    os.kill(os.getpid(), {int(number)})
    time.sleep(5)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "last", "eigen: Stopped.\n")
