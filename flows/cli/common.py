"""Options, configuration and exit codes that the commands share."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from eigen_core.checkpoint.store import StoreUnavailableError, store_from_environment
from eigen_core.common.errors import InputError
from flows.cli.printing import say
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
