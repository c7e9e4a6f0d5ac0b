"""Tables without frames that fit the width there is: text is wrapped between words, then columns are left out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

# What `rich` puts around and between columns with this box and this padding.
_BETWEEN = 3
_AROUND = 2


@dataclass(frozen=True)
class _Row:
    cells: tuple[str, ...]
    ends_section: bool


@dataclass(frozen=True)
class _Column:
    """A column that was measured: width of what must not be broken, and of its longest line."""

    index: int
    header: str
    least: int
    natural: int


class PlainTable:
    """A table of strings in console markup. No word is ever broken.

    Args:
        headers: one for each column.
        left: columns of text; the others hold numbers and are aligned to the right.
        least_important: columns that are left out, the first one first, until the rest fits.
    """

    def __init__(self, *headers: str, left: Sequence[str] = (), least_important: Sequence[str] = ()) -> None:
        self._headers = headers
        self._left = left
        self._least_important = least_important
        self._rows: list[_Row] = []

    def add_row(self, *cells: str, ends_section: bool = False) -> None:
        """Add a row, one cell for each header; `ends_section`: a line follows, unless it is the last one."""
        self._rows.append(_Row(cells, ends_section))

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
            said = f"Not shown at this width: {', '.join(left_out)}."
            console.print(said, style="dim", highlight=False, soft_wrap=True)

    def _measured(self, index: int) -> _Column:
        header, cells = self._headers[index], [row.cells[index] for row in self._rows]
        lines = [line for cell in cells for line in Text.from_markup(cell).plain.splitlines()]
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
        for row in self._rows:
            table.add_row(*(row.cells[column.index] for column in shown), end_section=row.ends_section)
        return table


def _left_of(width: int, columns: int) -> int:
    """What a console of a width leaves to the content of so many columns."""
    return width - _AROUND - _BETWEEN * (columns - 1)
