"""How a training looks: bars on a terminal, lines elsewhere, warnings between them; and how signals stop it."""

import io
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
from record_cases import record, telemetry
from rich.console import Console

from flows.cli.display import (
    BarDisplay,
    ConsoleHandler,
    Display,
    LineDisplay,
    StopSignals,
    display_on,
    figures,
    stop_signals,
)
from flows.server.environment import prepare_environment


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    """A console that writes into memory."""
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=120), output


def play(display: Display) -> None:
    """Let two generations pass."""
    with display:
        display.waiting_for("starting Prefect")
        display.started(0, 2)
        for generation in (1, 2):
            for phase in ("evaluate", "train", "evolve", "checkpoint"):
                display.phase_started(generation, phase)
                display.update(phase, 1, 2)
                display.update("panel", 2, 2)
            display.generation_finished(record(generation), telemetry(generation))


def test_a_pipe_gets_one_line_a_generation_and_no_control_characters() -> None:
    target, output = console(terminal=False)
    display = display_on(target)
    assert isinstance(display, LineDisplay)
    play(display)
    lines = output.getvalue().splitlines()
    assert lines == [f"generation {number}/2  {figures(record(number), telemetry(number))}" for number in (1, 2)]
    assert "best 2.0  mean 1.5  champion validation 0.5  buffer 10/100  3.5 s  RSS 100 MB" in lines[0]
    assert "\x1b" not in output.getvalue()


def test_a_pipe_is_told_where_a_continued_run_stands() -> None:
    target, output = console(terminal=False)
    LineDisplay(target).started(7, 9)
    assert output.getvalue() == "continuing after generation 7/9\n"


def test_a_terminal_gets_bars_and_figures_and_its_cursor_back() -> None:
    target, output = console(terminal=True)
    display = display_on(target)
    assert isinstance(display, BarDisplay)
    play(display)
    text = output.getvalue()
    assert "2: checkpoint" in text
    assert "2/2" in text
    assert figures(record(2), telemetry(2)) in text
    assert text.endswith("\x1b[?25h") or text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("name", "level", "requested", "printed"),
    [
        ("eigen_core.checkpoint", logging.WARNING, False, True),
        ("prefect.task_runs", logging.WARNING, False, True),
        ("prefect.task_runs", logging.ERROR, False, False),
        ("prefect.server", logging.ERROR, False, True),
        ("prefect.flow_runs", logging.WARNING, True, False),
        ("eigen_core.checkpoint", logging.ERROR, True, True),
    ],
)
def test_warnings_are_printed_unless_they_repeat_what_is_said_anyway(
    name: str, level: int, requested: bool, printed: bool
) -> None:
    target, output = console(terminal=False)
    signals = StopSignals()
    signals.requested = requested
    handler = ConsoleHandler(target, signals)
    handler.emit(logging.LogRecord(name, level, __file__, 1, "disk %d is [full]", (3,), None))
    word = logging.getLevelName(level).lower()
    assert output.getvalue() == (f"{word}: disk 3 is [full]\n" if printed else "")


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
