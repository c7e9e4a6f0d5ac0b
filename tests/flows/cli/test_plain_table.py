"""Tables fit the width there is: no word is broken, and what is left out is what matters least."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_cases import record, telemetry
from rich.console import Console

from flows.cli.common import PlainTable
from flows.cli.runs import print_history

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
