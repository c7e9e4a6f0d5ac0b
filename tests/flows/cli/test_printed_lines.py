"""Sentences and facts are wrapped between words on a terminal, and are one line each in a pipe."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flows.cli.common import print_fact, print_line

WORDS = st.lists(st.text("abc.=/`界", min_size=1, max_size=30), min_size=1, max_size=12)
LABEL = "a label"


def console(width: int, *, terminal: bool) -> tuple[Console, io.StringIO]:
    """A console that writes into memory."""
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=width, color_system=None), output


@given(WORDS, st.integers(20, 120))
def test_no_word_is_broken_on_a_terminal_and_none_is_lost(words: list[str], width: int) -> None:
    screen, output = console(width, terminal=True)
    half = len(words) // 2
    print_line(screen, "".join(f"{word} " for word in words[:half]), (" ".join(words[half:]), "bold"))
    lines = output.getvalue().splitlines()
    assert [word for line in lines for word in line.split()] == words
    assert all(screen.measure(line).maximum <= width for line in lines if len(line.split()) > 1)


@given(WORDS, st.integers(40, 120))
def test_what_is_wrapped_stays_below_its_fact(words: list[str], width: int) -> None:
    screen, output = console(width, terminal=True)
    print_fact(screen, LABEL, " ".join(words), width=10)
    first, *others = output.getvalue().splitlines()
    assert first.startswith(f"  {LABEL:<10}{words[0]}")
    assert all(line[:12] == " " * 12 and line[12] != " " for line in others)


@given(WORDS, st.integers(20, 120))
def test_a_pipe_gets_a_sentence_as_one_line(words: list[str], width: int) -> None:
    pipe, output = console(width, terminal=False)
    print_line(pipe, " ".join(words))
    assert output.getvalue() == " ".join(words) + "\n"


def test_lines_and_their_indents_stay() -> None:
    screen, output = console(30, terminal=True)
    print_line(screen, "first\n\n  second, which is longer than that")
    assert output.getvalue().splitlines() == ["first", "", "  second, which is longer than", "  that"]
