"""How commands print: lines, facts with a label, JSON, and tables without frames that fit the width there is."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import typer
from pydantic_core import to_jsonable_python
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from eigen_core.common.records import Excess

P = ParamSpec("P")

Styled = str | tuple[str, str]
"""Text, or text with its style; no markup."""

_PIPE_WIDTH = 120
# Of the text after a label, on a terminal that is narrower than anyone's.
_LEAST_WIDTH = 20
# What `rich` puts around and between columns with this box and this padding.
_BETWEEN = 3
_AROUND = 2


def output_console() -> Console:
    """Return the console of standard output. A pipe has no width: there it is that of COLUMNS, or 120."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_WIDTH)


def excess_document(excess: "Excess | None") -> dict[str, dict[str, float] | None]:
    """Return an excess as documents of `--json` have it: of a trade or of a year, the other null."""
    shown = None if excess is None else {"mean": excess.mean, "standard_error": excess.standard_error}
    per_year = excess is not None and excess.per == "year"
    return {"excess_per_trade": None if per_year else shown, "excess_per_year": shown if per_year else None}


def print_line(console: Console, *parts: Styled, style: str | None = None) -> None:
    """Print a line: on a terminal wrapped between words, never in one; elsewhere, however long, without a break."""
    _print_wrapped(console, "", Text.assemble(*parts), style)


def print_fact(console: Console, label: str, *parts: Styled, width: int = 12) -> None:
    """Print a labelled line as `print_line` does, with what is wrapped below the fact.

    Args:
        console: where to.
        label: what the fact is about.
        parts: the fact.
        width: of the column of labels.
    """
    _print_wrapped(console, f"  {label:<{width}}", Text.assemble(*parts))


def _print_wrapped(console: Console, label: str, text: Text, style: str | None = None) -> None:
    """Print text after a label; the lines that follow the first one are indented by as much."""
    indent = cell_len(label)
    lines = list(text.split("\n", allow_blank=True))
    if console.is_terminal:
        width = max(console.width - indent, _LEAST_WIDTH)
        lines = [part for line in lines for part in _wrapped(line, width)]
    for number, line in enumerate(lines):
        console.print(Text.assemble(" " * indent if number else label, line), style=style, soft_wrap=True)


def _wrapped(line: Text, width: int) -> list[Text]:
    """Divide a line between words; its indent is that of all its parts.

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
    """Print what a command has found: as JSON what `document` returns of it, else by `show` on standard output."""
    if as_json:
        print_json(document(*args, **kwargs))
    else:
        show(output_console(), *args, **kwargs)


def say(sentence: str) -> None:
    """Print a sentence on standard error."""
    print_line(Console(stderr=True), f"eigen: {sentence}")


@dataclass(frozen=True)
class _Column:
    """A column that was measured: width of what must not be broken, and of its longest line."""

    index: int
    header: str
    least: int
    natural: int


class PlainTable:
    """A table. Text is wrapped between words, never in one; then columns are left out.

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
        """Add a row, one cell for each header; `ends_section`: a line follows, unless it is the last one."""
        self._rows.append(([Text.assemble(cell) for cell in cells], ends_section))

    def print(self, console: Console) -> None:
        """Print as many columns as the width of the console holds, the important ones in any case."""
        columns = [self._measured(column) for column in range(len(self._headers))]
        shown = list(columns)
        for header in self._least_important:
            if sum(column.least for column in shown) <= _left_of(console.width, len(shown)):
                break
            shown.remove(columns[self._headers.index(header)])
        table = self._table(shown, _left_of(console.width, len(shown)))
        # A word that is longer than the console is wide runs beyond it: the terminal wraps it, and nothing is lost.
        console.print(table, width=max(console.width, table.width or 0), crop=False)
        left_out = [column.header for column in columns if column not in shown]
        if left_out:
            print_line(console, f"Not shown at this width: {', '.join(left_out)}.", style="dim")

    def _measured(self, index: int) -> _Column:
        header = self._headers[index]
        lines = [line for cells, _ in self._rows for line in cells[index].plain.splitlines()]
        # A number stays with its unit.
        text = [header, *lines] if header in self._left else [header]
        words = [word for line in text for word in line.split()]
        unbroken = words if header in self._left else [*words, *lines]
        return _Column(index, header, max(map(cell_len, unbroken)), max(map(cell_len, [header, *lines])))

    def _table(self, shown: Sequence[_Column], width: int) -> Table:
        """Give each column its least width, and of what is left a share by how much more it could use."""
        wanted = sum(column.natural - column.least for column in shown)
        spare = max(min(width - sum(column.least for column in shown), wanted), 0)
        widths = [
            column.least + (spare * (column.natural - column.least) // wanted if wanted else 0) for column in shown
        ]
        whole = sum(widths) + _AROUND + _BETWEEN * (len(shown) - 1)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=whole)
        for column, given in zip(shown, widths, strict=True):
            justify: JustifyMethod = "left" if column.header in self._left else "right"
            table.add_column(column.header, justify=justify, width=given)
        for cells, ends_section in self._rows:
            table.add_row(*(cells[column.index] for column in shown), end_section=ends_section)
        return table


def _left_of(width: int, columns: int) -> int:
    """Return the width that a console leaves to the content of so many columns."""
    return width - _AROUND - _BETWEEN * (columns - 1)
