"""Options, configuration, exit codes and printing that the commands share."""

import inspect
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer
from pydantic_core import to_jsonable_python
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from eigen_core.checkpoint.store import StoreUnavailableError, store_from_environment
from eigen_core.common.errors import InputError
from flows.server.environment import Stopped, StoppedByMemory

if TYPE_CHECKING:
    from eigen_core.config import Config

P = ParamSpec("P")

EXIT_OTHER = 1
EXIT_BAD_INPUT = 2
EXIT_MEMORY = 3
LARGEST = 1_000_000
"""Largest number that options take which count something."""
MEMORY_ADVICE = "`eigen doctor` shows what there is, `eigen plan` what is needed."


def flag(name: str, help_text: str, *short: str) -> Any:  # noqa: ANN401 - whatever typer makes an option of
    """Return an option without a value."""
    return typer.Option(name, *short, help=help_text, metavar="")


def number(help_text: str, most: int | None = None, shown: str | None = None) -> Any:  # noqa: ANN401
    """Return an option for a number from 1 to `most`; `shown`: its default, as the help says it."""
    return typer.Option(min=1, max=most, help=help_text, show_default=shown or True, metavar="N")


Store = Annotated[
    str | None,
    typer.Option(
        help="Where runs are kept: a folder, or gs://bucket/prefix. EIGEN_STORE sets it too.",
        show_default="runs",
        metavar="URL",
    ),
]
Json = Annotated[bool, flag("--json", "Print JSON.")]
Device = Annotated[
    str | None, typer.Option(help="Device that computes: auto, cpu or cuda.", show_default="auto", metavar="KIND")
]
Preset = Annotated[str | None, typer.Option(help="Preset to start from.", show_default="quickstart", metavar="NAME")]
Generations = Annotated[str | None, typer.Option(help="Generations to train.", metavar="N")]
Seed = Annotated[str | None, typer.Option(help="Seed of every random draw.", metavar="N")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting; `eigen presets NAME` lists them. May be repeated.", metavar="KEY=VALUE"),
]
_DATA_HELP, _DATA_DEFAULT = "Price file or folder; us5: other bundled prices.", "bundled prices"
Data = Annotated[str | None, typer.Option(help=_DATA_HELP, show_default=_DATA_DEFAULT, metavar="PATH")]
DataArgument = Annotated[str | None, typer.Argument(help=_DATA_HELP, show_default=_DATA_DEFAULT, metavar="[DATA]")]
RunOption = Annotated[
    str | None,
    typer.Option(help="Name of the run; an existing one continues.", show_default="preset and time", metavar="NAME"),
]
RunsOn = Annotated[
    str | None,
    typer.Option(
        help="Scheduler whose workers train the runs: tcp://host:8786.",
        show_default="this machine",
        metavar="ADDRESS",
    ),
]
Slice = Annotated[
    str | None,
    typer.Option(
        "--slice",
        help="Days to play: holdout, validation, or FIRST:LAST.",
        show_default="holdout of a finished run",
        metavar="DAYS",
    ),
]
Agent = Annotated[
    str, typer.Option(help="Agents that trade: champion, elites, population, ensemble, or a number.", metavar="WHO")
]
_RUN_NAME_HELP = "Name of the run."
RunName = Annotated[str, typer.Argument(help=_RUN_NAME_HELP, metavar="NAME")]
AnyRunName = Annotated[str | None, typer.Argument(help=_RUN_NAME_HELP, show_default="all", metavar="[NAME]")]


@dataclass(frozen=True)
class RunOptions:
    """Options from which a configuration is made; `run_options` gives them to a command."""

    preset: Preset = None
    run: RunOption = None
    generations: Generations = None
    seed: Seed = None
    assignments: Assignments = None
    data: Data = None
    store: Store = None
    device: Device = None

    def settings(self) -> list[str]:
        """Return the options but preset and run as `key=value`; the path of data is absolute."""
        from eigen_core.config.market import absolute_data

        options = {
            "generations": self.generations,
            "seed": self.seed,
            "market.data": None if self.data is None else absolute_data(self.data),
            "checkpoint.store": self.store,
            "device": self.device,
        }
        return [*(f"{key}={value}" for key, value in options.items() if value is not None), *(self.assignments or ())]

    def with_store(self) -> "RunOptions":
        """Return the options with the store of the environment, unless an option or a setting names one."""
        named = any(assignment.strip().startswith("checkpoint.store") for assignment in self.assignments or ())
        if named or self.store is not None:
            return self
        return replace(self, store=store_from_environment(os.environ))

    def config(self) -> "Config":
        """Return the configuration, with this machine's own settings from its environment."""
        from eigen_core.config.loading import load_config

        return load_config(self.preset, self.with_store().settings(), os.environ)


def run_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options `names` of `RunOptions`, or all, in place of its keyword parameter `options`."""
    chosen = [field for field in fields(RunOptions) if not names or field.name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**values: Any) -> None:  # noqa: ANN401 - whatever the options of a command are
            options = RunOptions(**{field.name: values.pop(field.name) for field in chosen})
            command(options=options, **values)

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "options":
                parameters += [
                    parameter.replace(name=field.name, default=None, annotation=field.type) for field in chosen
                ]
            else:
                parameters.append(parameter)
        vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
        return with_options

    return decorate


def examples(text: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Give a command examples, with which its help ends."""

    def decorate(command: Callable[P, None]) -> Callable[P, None]:
        vars(command)["examples"] = f"[bold]Examples[/]\n{text}"
        return command

    return decorate


def sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Turn the known errors of a command into a sentence on standard error and an exit code, without a traceback."""

    @wraps(command)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            raise _exit(str(error), EXIT_BAD_INPUT) from None
        except StoppedByMemory as stop:
            raise _exit(str(stop), EXIT_MEMORY) from None
        except (Stopped, StoreUnavailableError) as stop:
            raise _exit(str(stop), EXIT_OTHER) from None
        except MemoryError:
            raise _exit(f"There is not enough memory for this. {MEMORY_ADVICE}", EXIT_MEMORY) from None
        except KeyboardInterrupt:
            raise _exit("Stopped.", EXIT_OTHER) from None

    return speaking


def _exit(sentence: str, code: int) -> typer.Exit:
    say(sentence)
    return typer.Exit(code)


def store_of(given: str | None) -> str:
    """Return the store to use: the one given, else that of the environment, else the default."""
    from eigen_core.config import Config

    return given or store_from_environment(os.environ) or Config().checkpoint.store


Styled = str | tuple[str, str]
"""Text, or text with its style; no markup."""

_PIPE_WIDTH = 120
# Of the text after a label, on a terminal that is narrower than anyone's.
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
    """A table that wraps text between words, never in one; columns that then do not fit are left out.

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
        bounds = [self._bounds(column) for column in range(len(self._headers))]
        shown = list(range(len(self._headers)))
        for header in self._least_important:
            if sum(bounds[column][0] for column in shown) + _frame_width(len(shown)) <= console.width:
                break
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
        # A word that is longer than the console is wide runs beyond it: the terminal wraps it, and nothing is lost.
        console.print(table, width=max(console.width, table.width or 0), crop=False)
        left_out = [header for column, header in enumerate(self._headers) if column not in shown]
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
