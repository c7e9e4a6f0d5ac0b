"""Shared by the commands: options and the configuration they give, exit codes, sentences instead of tracebacks."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from eigen_core.common.errors import InputError
from eigen_core.config.market import absolute_data
from eigen_core.store import StoreUnavailableError, store_from_environment
from flows.cli.output import say
from flows.endings import Stopped, StoppedByMemory

if TYPE_CHECKING:
    from eigen_core.config import Config

P = ParamSpec("P")

EXIT_OTHER = 1
EXIT_BAD_INPUT = 2
EXIT_MEMORY = 3
LARGEST = 1_000_000
"""Largest number that options take which count something."""
MEMORY_ADVICE = "`eigen doctor` shows what there is, `eigen plan` what is needed."

Store = Annotated[
    str | None,
    typer.Option(
        help="Where runs are kept: a folder, or gs://bucket/prefix. EIGEN_STORE sets it too.",
        show_default="runs",
        metavar="URL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", metavar="")]
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
Run = Annotated[
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


def sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Give known errors of a command as a sentence on standard error and an exit code, without a traceback."""

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


def config_of(
    preset: str | None,
    generations: str | None,
    seed: str | None,
    assignments: Sequence[str] | None,
    data: str | None,
    store: str | None,
    device: str | None,
) -> "Config":
    """Return the configuration of a run from what was given, and this machine's own settings from its environment."""
    from eigen_core.config.loading import load_config

    named = given_store(store, assignments or ())
    return load_config(preset, given_settings(generations, seed, assignments, data, named, device), os.environ)


def given_settings(
    generations: str | None,
    seed: str | None,
    assignments: Sequence[str] | None,
    data: str | None,
    store: str | None,
    device: str | None,
) -> list[str]:
    """Return all that was given as `key=value`; the path of data is absolute."""
    options = {
        "generations": generations,
        "seed": seed,
        "market.data": None if data is None else absolute_data(data),
        "checkpoint.store": store,
        "device": device,
    }
    return [*(f"{key}={value}" for key, value in options.items() if value is not None), *(assignments or ())]


def given_store(given: str | None, assignments: Sequence[str] = ()) -> str | None:
    """Return the store that was given as an option, else that of the environment unless a setting names another."""
    if given is not None or any(assignment.strip().startswith("checkpoint.store") for assignment in assignments):
        return given
    return store_from_environment(os.environ)


def store_of(given: str | None) -> str:
    """Return the store to use: the one given, else that of the environment, else the default."""
    from eigen_core.config import Config

    return given_store(given) or Config().checkpoint.store
