"""What several `eigen` commands share: their options, the configuration that these give, and the exit codes."""

import inspect
import json
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.store_location import store_from_environment
from eigen_core.common.errors import InputError, Stopped, StoppedByMemory, end_of
from eigen_core.common.text import size
from flows.cli.console import say

if TYPE_CHECKING:
    from eigen_core.config import Config

P = ParamSpec("P")

EXIT_OTHER = 1
EXIT_BAD_INPUT = 2
EXIT_MEMORY = 3
LARGEST = 1_000_000
"""Greatest value of options that are counts, such as --trials."""
MEMORY_ADVICE = "`eigen doctor` shows the memory of this machine, `eigen plan` the memory that a run needs."


def flag(name: str, help_text: str, *short: str) -> Any:  # noqa: ANN401 - whatever typer makes an option of
    return typer.Option(name, *short, help=help_text, metavar="")


def option(metavar: str, help_text: str, shown: str | None = None, *names: str, **bounds: Any) -> Any:  # noqa: ANN401
    """Return a typer option with a value; `shown`: its default as --help prints it; `names`: flags, such as --set."""
    return typer.Option(*names, help=help_text, show_default=shown or True, metavar=metavar, **bounds)


def number(help_text: str, most: int | None = None, shown: str | None = None) -> Any:  # noqa: ANN401
    """Return a typer option for an integer from 1 to `most` (None: without a bound); for `shown` see `option`."""
    return option("N", help_text, shown, min=1, max=most)


Store = Annotated[
    str | None, option("URL", "Where runs are kept: a folder, or gs://bucket/prefix. EIGEN_STORE sets it too.", "runs")
]
Json = Annotated[bool, flag("--json", "Print JSON.")]
DATA_HELP, DATA_DEFAULT = "Price file or folder, or us5: other prices that come with Eigen.", "bundled prices"
RunsOn = Annotated[
    str | None, option("ADDRESS", "Dask scheduler whose workers train the runs: tcp://host:8786.", "this machine")
]
Slice = Annotated[
    str | None,
    option("DAYS", "Days to trade: holdout, validation, or dates FIRST:LAST.", "holdout of a finished run", "--slice"),
]
Agent = Annotated[str, option("WHO", "Agents that trade: champion, elites, population, ensemble, or a number.")]
JudgedBy = Annotated[
    list[str] | None,
    option("KEY=VALUE", "A setting of the account, or of how prices are read. May be repeated.", None, "--set"),
]
RunName = Annotated[str, typer.Argument(help="Name of the run.", metavar="NAME")]


@dataclass(frozen=True)
class RunOptions:
    """Command-line options from which `config` makes the configuration of a run."""

    preset: Annotated[str | None, option("NAME", "Preset to start from.", "quickstart")] = None
    run: Annotated[str | None, option("NAME", "Name of the run; an existing one continues.", "preset and time")] = None
    generations: Annotated[str | None, option("N", "Generations to train.")] = None
    seed: Annotated[str | None, option("N", "Seed of every random draw.")] = None
    assignments: Annotated[
        list[str] | None,
        option("KEY=VALUE", "A setting; `eigen presets NAME` lists them. May be repeated.", None, "--set"),
    ] = None
    data: Annotated[str | None, option("PATH", DATA_HELP, DATA_DEFAULT)] = None
    store: Store = None
    device: Annotated[str | None, option("KIND", "Device that computes: auto, cpu or cuda.", "auto")] = None

    def settings(self) -> list[str]:
        """Return the given options except `preset` and `run` as settings `key=value`; those of --set come last."""
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
        """Return the options; if neither --store nor --set names a store, with that of the variable EIGEN_STORE."""
        named = any(assignment.strip().startswith("checkpoint.store") for assignment in self.assignments or ())
        if named or self.store is not None:
            return self
        return replace(self, store=store_from_environment(os.environ))

    def config(self) -> "Config":
        """Return the configuration, with the settings that environment variables give (see `MACHINE_SETTINGS`)."""
        from eigen_core.config.loading import load_config

        return load_config(self.preset, self.with_store().settings(), os.environ)


def run_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `options` by fields of `RunOptions`: `names`, or all."""
    chosen = [field for field in fields(RunOptions) if not names or field.name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**values: Any) -> None:  # noqa: ANN401 - whatever the options of a command are
            options = RunOptions(**{field.name: values.pop(field.name) for field in chosen})
            command(options=options, **values)

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            shared = [one.replace(name=field.name, default=None, annotation=field.type) for field in chosen]
            parameters += shared if one.name == "options" else [one]
        vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
        return with_options

    return decorate


def examples(text: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    def decorate(command: Callable[P, None]) -> Callable[P, None]:
        vars(command)["examples"] = f"[bold]Examples[/]\n{text}"
        return command

    return decorate


def sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Decorate a command: errors of input, store or memory, `Stopped` and Ctrl-C give a sentence and an exit code."""

    @wraps(command)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (InputError, Stopped, StoreUnavailableError, MemoryError, KeyboardInterrupt) as error:
            sentence, code = _ending(error)
            say(sentence)
            if END_PIPE in os.environ:
                with suppress(OSError):
                    told = json.dumps({"end": end_of(error), "sentence": sentence[: END_BYTES // 8]})
                    os.write(int(os.environ[END_PIPE]), told.encode())
            raise typer.Exit(code) from error

    return speaking


END_BYTES = 1 << 16
"""Size of a pipe: all that is told must fit into it, as JSON, since the reader waits for the end of the process."""
END_PIPE = "EIGEN_END_PIPE"
"""Variable with the descriptor of a pipe, on which a command tells the process that started it how it ended early."""


def _ending(error: BaseException) -> tuple[str, int]:
    """Return the sentence and the exit code with which a command ends after `error`."""
    if isinstance(error, MemoryError):
        return f"There is not enough memory for this command. {MEMORY_ADVICE}", EXIT_MEMORY
    if isinstance(error, KeyboardInterrupt):
        return "Stopped.", EXIT_OTHER
    bad = EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_OTHER
    return str(error), EXIT_MEMORY if isinstance(error, StoppedByMemory) else bad


def store_of(given: str | None) -> str:
    """Return the store `given` by --store; if it is None, the store of the variable EIGEN_STORE, else the default."""
    from eigen_core.config import Config

    return given or store_from_environment(os.environ) or Config().checkpoint.store


# Address space (bytes) that importing torch and Prefect takes: measured with torch 2.13 (CPU) and Prefect 3.8.8.
_LEAST_ADDRESSES = 1_200_000_000


def require_addresses() -> None:
    """Raise `StoppedByMemory` if RLIMIT_AS, the limit of the address space, is too low to import torch and Prefect."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY and soft < _LEAST_ADDRESSES:
        raise StoppedByMemory(
            f"RLIMIT_AS (ulimit -v) is {size(soft)} of address space, but torch and Prefect alone take "
            f"{size(_LEAST_ADDRESSES)}: raise it."
        )
