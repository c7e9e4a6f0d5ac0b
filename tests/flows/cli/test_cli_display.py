"""How a training looks: bars on a terminal, lines elsewhere, warnings between them."""

import io
import logging

import pytest
from record_cases import record, telemetry
from rich.console import Console

from flows.cli.display import BarDisplay, ConsoleHandler, Display, LineDisplay, StopSignals, display_on, figures


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
