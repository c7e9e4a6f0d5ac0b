"""Tables and sentences fit the width: no word is broken, and the least important columns are left out."""

import io
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_cases import record, telemetry
from rich.console import Console

from eigen_core.machine.profiling import OperatorTime, Profile
from flows.cli.printing import PlainTable, print_fact, print_line
from flows.cli.runs import print_history
from flows.cli.training import print_profile

HEADERS = ("generation", "best fitness", "state", "what it is", "RSS")
TEXT = ("state", "what it is")
LEAST_IMPORTANT = ("RSS", "best fitness", "what it is")
WORDS = st.text("abcdefgh-.=/", min_size=1, max_size=30)
NUMBERS = st.integers(-(10**9), 10**9).map(lambda number: f"{number:,} MB")
ROWS = st.lists(
    st.tuples(
        NUMBERS, NUMBERS, WORDS, st.lists(WORDS, max_size=12).map(" ".join), NUMBERS, st.booleans()
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


def shown_headers(lines: list[str]) -> list[str]:
    """Headers above the rule, which may stand on several lines."""
    words = " ".join(lines[: next(index for index, line in enumerate(lines) if set(line.strip()) == {"─"})]).split()
    return [header for header in HEADERS if set(header.split()) <= set(words)]


@settings(deadline=None, max_examples=60)
@given(ROWS, st.integers(4, 200))
def test_no_word_is_broken_at_any_width(rows: list[tuple[str, str, str, str, str, bool]], width: int) -> None:
    lines = printed(rows, width)
    shown = shown_headers(lines)
    columns = [HEADERS.index(header) for header in shown]
    given_words = sorted(word for row in rows for column in columns for word in str(row[column]).split())
    rule = next(index for index, line in enumerate(lines) if set(line.strip()) == {"─"})
    note = next((index for index, line in enumerate(lines) if line.startswith("Not shown")), len(lines))
    body = [line for line in lines[rule + 1 : note] if set(line.strip()) != {"─"}]
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


@settings(deadline=None, max_examples=20)
@given(ROWS)
def test_where_there_is_width_enough_every_row_is_a_line(rows: list[tuple[str, str, str, str, str, bool]]) -> None:
    lines = printed(rows, 600)
    assert shown_headers(lines) == list(HEADERS)
    assert not any("Not shown" in line for line in lines)
    assert len([line for line in lines if "MB" in line]) == len(rows)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(140, []), (100, []), (80, ["RSS", "peak"]), (60, ["RSS", "peak", "buffer", "mean fitness"])],
)
def test_the_table_of_a_training_is_folded_by_its_columns(width: int, left_out: list[str]) -> None:
    output = io.StringIO()
    status: Any = SimpleNamespace(history=[record(24), record(25)], telemetry=[telemetry(24), telemetry(25)])
    print_history(Console(file=output, width=width), status)
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for word in ("generation", "fitness", "validation", "champion"):
        assert any(word in line for line in lines)
    said = [line for line in lines if line.startswith("Not shown")]
    assert said == ([f"Not shown at this width: {', '.join(sorted(left_out, key=ORDER.index))}."] if left_out else [])


ORDER = ["generation", "best fitness", "mean fitness", "validation", "champion", "buffer", "time", "RSS", "peak"]


SENTENCE = st.lists(st.text("abc.=/`界", min_size=1, max_size=30), min_size=1, max_size=12)
LABEL = "a label"


def console(width: int, *, terminal: bool) -> tuple[Console, io.StringIO]:
    """A console that writes into memory."""
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=width, color_system=None), output


@given(SENTENCE, st.integers(20, 120))
def test_no_word_is_broken_on_a_terminal_and_none_is_lost(words: list[str], width: int) -> None:
    screen, output = console(width, terminal=True)
    half = len(words) // 2
    print_line(screen, "".join(f"{word} " for word in words[:half]), (" ".join(words[half:]), "bold"))
    lines = output.getvalue().splitlines()
    assert [word for line in lines for word in line.split()] == words
    assert all(screen.measure(line).maximum <= width for line in lines if len(line.split()) > 1)


@given(SENTENCE, st.integers(40, 120))
def test_what_is_wrapped_stays_below_its_fact(words: list[str], width: int) -> None:
    screen, output = console(width, terminal=True)
    print_fact(screen, LABEL, " ".join(words), width=10)
    first, *others = output.getvalue().splitlines()
    assert first.startswith(f"  {LABEL:<10}{words[0]}")
    assert all(line[:12] == " " * 12 and line[12] != " " for line in others)


@given(SENTENCE, st.integers(20, 120))
def test_a_pipe_gets_a_sentence_as_one_line(words: list[str], width: int) -> None:
    pipe, output = console(width, terminal=False)
    print_line(pipe, " ".join(words))
    assert output.getvalue() == " ".join(words) + "\n"


def test_lines_and_their_indents_stay() -> None:
    screen, output = console(30, terminal=True)
    print_line(screen, "first\n\n  second, which is longer than that")
    assert output.getvalue().splitlines() == ["first", "", "  second, which is longer than", "  that"]


def profile_lines(*operators: OperatorTime) -> list[str]:
    shown = StringIO()
    print_profile(Console(file=shown), Profile(Path("folder"), 2, list(operators)))
    return shown.getvalue().splitlines()


def test_seconds_of_the_gpu_are_printed_where_there_is_one() -> None:
    assert profile_lines(
        OperatorTime("train", "aten::bmm", 1_000, 1.0, 0.25, 6.0),
        OperatorTime("train", "aten::mul", 10, 3.0, 0.75, 2.0),
        OperatorTime("evolve", "aten::sort", 1, 0.5, 1.0, 0.0),
    ) == [
        "Profile of generation 2, GPU seconds of operators: folder",
        "  train       75 %    6.000 s    1,000 x aten::bmm",
        "  train       25 %    2.000 s       10 x aten::mul",
        "  evolve       0 %    0.000 s        1 x aten::sort",
    ]


def test_else_those_of_the_processor() -> None:
    assert profile_lines(
        OperatorTime("train", "aten::mul", 10, 3.0, 0.75, 0.0),
        OperatorTime("train", "aten::bmm", 1_000, 1.0, 0.25, 0.0),
    ) == [
        "Profile of generation 2, CPU seconds of operators: folder",
        "  train       75 %    3.000 s       10 x aten::mul",
        "  train       25 %    1.000 s    1,000 x aten::bmm",
    ]
