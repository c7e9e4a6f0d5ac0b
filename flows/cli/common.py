"""What the commands share: sentences instead of tracebacks, exit codes, and from options to a configuration."""

import json
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import typer

from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.errors import InputError
from eigen_core.store import StoreUnavailableError, store_from_environment
from flows.endings import Stopped, StoppedByMemory

P = ParamSpec("P")

EXIT_OTHER = 1
EXIT_BAD_INPUT = 2
EXIT_MEMORY = 3


def sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Give known errors of a command as a sentence on standard error and an exit code, without a traceback."""

    @wraps(command)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            say(str(error))
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except StoppedByMemory as stop:
            say(str(stop))
            raise typer.Exit(EXIT_MEMORY) from None
        except (Stopped, StoreUnavailableError) as stop:
            say(str(stop))
            raise typer.Exit(EXIT_OTHER) from None
        except MemoryError:
            say("There is not enough memory for this. `eigen doctor` shows what there is, `eigen plan` what is needed.")
            raise typer.Exit(EXIT_MEMORY) from None
        except KeyboardInterrupt:
            say("Stopped.")
            raise typer.Exit(EXIT_OTHER) from None

    return speaking


def config_of(
    preset: str | None,
    generations: str | None,
    seed: str | None,
    assignments: Sequence[str] | None,
    data: str | None,
    store: str | None,
    device: str | None,
) -> Config:
    """Return the configuration of a run from what was given, with the environment's store if none was."""
    named = given_store(store, assignments or ())
    return load_config(preset, given_settings(generations, seed, assignments, data, named, device))


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
        "market.data": None if data is None else str(Path(os.path.expanduser(data)).absolute()),
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
    return given_store(given) or Config().checkpoint.store


def print_json(document: object) -> None:
    """Print a document."""
    typer.echo(json.dumps(document, indent=2))


def say(sentence: str) -> None:
    """Say something beside a command's output."""
    typer.echo(f"eigen: {sentence}", err=True)
