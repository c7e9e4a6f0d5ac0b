"""How a training and its tables look: bars on a terminal, lines elsewhere, no broken word; how signals stop it."""

import io
import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from record_cases import record, telemetry
from rich.console import Console

from flows.cli.console import (
    ConsoleHandler,
    Display,
    PlainTable,
    StopSignals,
    display_on,
    metrics_text,
    print_fact,
    print_line,
    stop_signals,
)


def console(*, terminal: bool, width: int = 120, **options: Any) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=width, **options), output


def play(display: Display) -> None:
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
    play(display)
    lines = output.getvalue().splitlines()
    assert lines[:2] == [
        f"generation {number}/2  {metrics_text(record(number), telemetry(number))}" for number in (1, 2)
    ]
    assert "best 2.0  mean 1.5  champion 0.8  replay 10/100  3.5 s  RSS 100 MB" in lines[0]
    display.started(7, 9)
    assert output.getvalue().splitlines()[2:] == ["continuing after generation 7/9"]
    assert "\x1b" not in output.getvalue()


def test_a_terminal_gets_bars_and_figures_and_its_cursor_back() -> None:
    target, output = console(terminal=True)
    display = display_on(target)
    play(display)
    text = output.getvalue()
    assert "2: checkpoint" in text
    assert "2/2" in text
    assert metrics_text(record(2), telemetry(2)) in text
    assert text.endswith("\x1b[?25h") or text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("name", "level", "requested", "printed"),
    [
        ("eigen_core.checkpoint", logging.WARNING, False, True),
        ("prefect.task_runs", logging.WARNING, False, True),
        ("prefect.task_runs", logging.ERROR, False, False),
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
from flows.cli.console import stop_signals
from rich.console import Console
with stop_signals(Console(force_terminal=True)) as signals:
    {before}
    os.kill(os.getpid(), {int(number)})
    time.sleep(5)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    # Which shows the cursor.
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "\x1b[?25h", "eigen: Stopped.\n")


HEADERS = ("generation", "best fitness", "state", "what it is", "RSS")
TEXT = ("state", "what it is")
LEAST_IMPORTANT = ("RSS", "best fitness", "what it is")
WORDS = st.text("abcdefgh-.=/", min_size=1, max_size=30)
NUMBERS = st.integers(-(10**9), 10**9).map(lambda number: f"{number:,} MB")
ROWS = st.lists(
    st.tuples(
        NUMBERS, NUMBERS, WORDS, st.lists(WORDS, min_size=1, max_size=12).map(" ".join), NUMBERS, st.booleans()
    ),
    max_size=4,
)  # fmt: skip


def printed(rows: list[tuple[str, str, str, str, str, bool]], width: int) -> list[str]:
    """The lines that a console of this width gets."""
    table = PlainTable(*HEADERS, left=TEXT, least_important=LEAST_IMPORTANT)
    for *cells, ends_section in rows:
        table.add_row(*cells, ends_section=ends_section)
    output = io.StringIO()
    table.print(Console(file=output, width=width))
    return output.getvalue().splitlines()


def rule_of(lines: list[str]) -> int:
    return next(index for index, line in enumerate(lines) if set(line.strip()) == {"─"})


def shown_headers(lines: list[str]) -> list[str]:
    """Headers above the rule, which may stand on several lines."""
    words = " ".join(lines[: rule_of(lines)]).split()
    return [header for header in HEADERS if set(header.split()) <= set(words)]


@settings(deadline=None, max_examples=60)
@given(ROWS, st.integers(4, 200))
def test_no_word_is_broken_at_any_width(rows: list[tuple[str, str, str, str, str, bool]], width: int) -> None:
    lines = printed(rows, width)
    shown = shown_headers(lines)
    columns = [HEADERS.index(header) for header in shown]
    given_words = sorted(word for row in rows for column in columns for word in str(row[column]).split())
    note = next((index for index, line in enumerate(lines) if line.startswith("Not shown")), len(lines))
    body = [line for line in lines[rule_of(lines) + 1 : note] if set(line.strip()) != {"─"}]
    assert sorted(word for line in body for word in line.split()) == given_words
    left_out = [header for header in HEADERS if header not in shown]
    assert set(left_out) == set(LEAST_IMPORTANT[: len(left_out)])
    if len(left_out) < len(LEAST_IMPORTANT):
        assert max(map(len, lines[:note])) <= width
    # Numbers stay with their units.
    for row in rows:
        for column in columns:
            if HEADERS[column] not in TEXT:
                assert any(str(row[column]) in line for line in body)


SENTENCE = st.lists(st.text("abc.=/`界", min_size=1, max_size=30), min_size=1, max_size=12)


@given(SENTENCE, st.integers(40, 120))
def test_a_terminal_gets_whole_words_below_their_label_and_a_pipe_one_line(words: list[str], width: int) -> None:
    screen, output = console(width=width, terminal=True, color_system=None)
    half = len(words) // 2
    print_fact(screen, "a label", "".join(f"{word} " for word in words[:half]), (" ".join(words[half:]), "bold"))
    first, *others = lines = output.getvalue().splitlines()
    assert first.startswith(f"  a label     {words[0]}")
    assert all(line[:14] == " " * 14 and line[14] != " " for line in others)
    assert " ".join(lines).split()[2:] == words
    assert all(screen.measure(line).maximum <= width for line in lines if len(line[14:].split()) > 1)
    pipe, output = console(width=width, terminal=False)
    print_line(pipe, " ".join(words))
    assert output.getvalue() == " ".join(words) + "\n"


def test_lines_and_their_indents_stay() -> None:
    screen, output = console(width=30, terminal=True)
    print_line(screen, "first\n\n  second, which is longer than that")
    assert output.getvalue().splitlines() == ["first", "", "  second, which is longer than", "  that"]
