"""Printing on terminals and pipes: lines, facts, tables and JSON."""

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import typer
from pydantic_core import to_jsonable_python
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

P = ParamSpec("P")

Styled = str | tuple[str, str]
"""Text, or text with its style; no markup."""

_PIPE_WIDTH = 120
# Least width of the text after a label, however narrow the terminal.
_LEAST_WIDTH = 20


def output_console() -> Console:
    """Return the console of standard output. A pipe has no width: use that of COLUMNS, or 120."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_WIDTH)


def print_line(console: Console, *parts: Styled, style: str | None = None) -> None:
    """Print a line: on a terminal wrapped between words, never in one; elsewhere, however long, without a break."""
    _print_wrapped(console, "", Text.assemble(*parts), style)


def print_fact(console: Console, label: str, *parts: Styled, width: int = 12) -> None:
    """Print a label in a column of `width`, then a fact as `print_line` does, indented by that column."""
    _print_wrapped(console, f"  {label:<{width}}", Text.assemble(*parts))


def _print_wrapped(console: Console, label: str, text: Text, style: str | None = None) -> None:
    indent = cell_len(label)
    lines = list(text.split("\n", allow_blank=True))
    if console.is_terminal:
        width = max(console.width - indent, _LEAST_WIDTH)
        lines = [part for line in lines for part in _wrapped(line, width)]
    for number, line in enumerate(lines):
        console.print(Text.assemble(" " * indent if number else label, line), style=style, soft_wrap=True)


def _wrapped(line: Text, width: int) -> list[Text]:
    """Divide a line between words; all parts have its indent.

    `Text.wrap` would break, or cut off, a word that is longer than `width`.
    """
    indent = len(line) - len(line.plain.lstrip())
    starts, used, end = [], 0, 0
    for word in re.finditer(r"\S+", line.plain):
        used += cell_len(line.plain[end : word.end()])
        if end and used > width:
            starts.append(word.start())
            used = indent + cell_len(word[0])
        end = word.end()
    first, *others = line.divide(starts)
    parts = [first, *(Text.assemble(" " * indent, part) for part in others)]
    for part in parts[:-1]:
        part.rstrip()
    return parts


def attributes(of: object, *names: str) -> dict[str, Any]:
    """Return these attributes by name, as a part of a document."""
    return {name: getattr(of, name) for name in names}


def print_json(document: object) -> None:
    """Print a document, which may hold models, dataclasses and paths."""
    typer.echo(json.dumps(document, indent=2, default=to_jsonable_python))


def print_result(
    as_json: bool,
    document: Callable[P, object],
    show: Callable[Concatenate[Console, P], object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Print the result of a command: as JSON `document(...)`, whose keys are a contract; else `show(console, ...)`."""
    if as_json:
        print_json(document(*args, **kwargs))
    else:
        show(output_console(), *args, **kwargs)


def say(sentence: str) -> None:
    """Print a sentence on standard error."""
    print_line(Console(stderr=True), f"eigen: {sentence}")


class PlainTable:
    """A table that wraps text between words, never in one; columns that are empty, or then do not fit, are left out.

    Args:
        headers: one for each column.
        left: columns of text; the others hold numbers and are aligned to the right.
        least_important: columns that are left out, the first one first, until the rest fits.
    """

    def __init__(self, *headers: str, left: Sequence[str] = (), least_important: Sequence[str] = ()) -> None:
        self._headers = headers
        self._left = left
        self._least_important = least_important
        self._rows: list[tuple[list[Text], bool]] = []

    def add_row(self, *cells: Styled, ends_section: bool = False) -> None:
        """Add a row, one cell for each header; `ends_section`: a line follows, unless it is the last row."""
        self._rows.append(([Text.assemble(cell) for cell in cells], ends_section))

    def print(self, console: Console) -> None:
        """Print as many columns as the width of the console holds, the important ones in any case."""
        columns = range(len(self._headers))
        bounds = [self._bounds(column) for column in columns]
        filled = [column for column in columns if not self._rows or any(cells[column] for cells, _ in self._rows)]
        shown = list(filled)
        for header in self._least_important:
            if sum(bounds[column][0] for column in shown) + _frame_width(len(shown)) <= console.width:
                break
            if self._headers.index(header) in shown:
                shown.remove(self._headers.index(header))
        least, natural = (sum(bounds[column][which] for column in shown) for which in (0, 1))
        # Each column gets its least width, and of the rest a share by how much more it could use.
        spare = max(min(console.width - _frame_width(len(shown)), natural) - least, 0)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=least + spare + _frame_width(len(shown)))
        for column in shown:
            low, high = bounds[column]
            width = low + (spare * (high - low) // (natural - least) if spare else 0)
            justify: JustifyMethod = "left" if self._headers[column] in self._left else "right"
            table.add_column(self._headers[column], justify=justify, width=width)
        for cells, ends_section in self._rows:
            table.add_row(*(cells[column] for column in shown), end_section=ends_section)
        # A word that is wider than the console is not cropped: the terminal wraps it.
        console.print(table, width=max(console.width, table.width or 0), crop=False)
        left_out = [self._headers[column] for column in filled if column not in shown]
        if left_out:
            print_line(console, f"Not shown at this width: {', '.join(left_out)}.", style="dim")

    def _bounds(self, index: int) -> tuple[int, int]:
        """Return the widths of the longest word of a column and of its longest line; a number stays with its unit."""
        header = self._headers[index]
        lines = [line for cells, _ in self._rows for line in cells[index].plain.splitlines()]
        words = [word for line in lines for word in line.split()] if header in self._left else lines
        return max(map(cell_len, [*header.split(), *words])), max(map(cell_len, [header, *lines]))


def _frame_width(columns: int) -> int:
    """Return the width that `rich` puts around and between columns with this box and this padding."""
    return 2 + 3 * (columns - 1)
