"""The command line `eigen`.

Torch and Prefect take seconds to import, so nothing here imports them before a command needs them.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from eigen_core import __version__
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.errors import InputError
from eigen_core.store import StoreUnavailableError, store_from_environment
from flows.cli_store import cleaned_document, print_cleaned, print_verification, verification_document
from flows.cli_tables import (
    output_console,
    presets_document,
    print_presets,
    print_run,
    print_runs,
    print_settings,
    run_document,
    runs_document,
    settings_document,
)
from flows.cli_training import Stopped, continue_run, default_run_name, start_or_continue

P = ParamSpec("P")

EXIT_BAD_INPUT = 2
EXIT_OTHER = 1

_EXAMPLES = """[bold]Examples[/]

  eigen train                              the bundled prices, 25 generations
  eigen train --run first --generations 3
  eigen resume first --generations 10
  eigen show first
  eigen verify first --deep                is every file what it was when it was written?
  eigen export first --champion champion.safetensors
  eigen presets quickstart                 every setting, explained
"""

_TRAIN_EXAMPLES = """[bold]Examples[/]

  eigen train
  eigen train --preset quickstart --run first --generations 3 --seed 7
  eigen train --run mine --data prices.csv --set learner.batch_size=128 --set trading.cost_bps=10

Run the same command again to continue a run that was stopped.
"""

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
    str | None, typer.Option(help="Where tensors live: auto, cpu or cuda.", show_default="auto", metavar="KIND")
]
RunName = Annotated[str, typer.Argument(help="Name of the run.", metavar="NAME")]


def sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Give known errors of a command as a sentence on standard error and an exit code, without a traceback."""

    @wraps(command)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            _say(str(error))
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except (Stopped, StoreUnavailableError) as stop:
            _say(str(stop))
            raise typer.Exit(EXIT_OTHER) from None
        except KeyboardInterrupt:
            _say("Stopped.")
            raise typer.Exit(EXIT_OTHER) from None

    return speaking


app = typer.Typer(
    name="eigen",
    help="Train a population of trading agents by evolutionary reinforcement learning.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eigen {__version__}")
        raise typer.Exit


@app.callback()
def eigen(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True, metavar="")
    ] = False,
) -> None:
    """Train a population of trading agents by evolutionary reinforcement learning."""


@app.command(epilog=_TRAIN_EXAMPLES)
@sentences
def train(
    preset: Annotated[
        str | None, typer.Option(help="Preset to start from.", show_default="quickstart", metavar="NAME")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Name of the run; an existing one goes on.", show_default="preset and time", metavar="NAME"),
    ] = None,
    generations: Annotated[int | None, typer.Option(help="Generations to train.", metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw.", metavar="N")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting; `eigen presets NAME` lists them. May be repeated.", metavar="KEY=VALUE"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Price file or folder.", show_default="bundled prices", metavar="PATH")
    ] = None,
    store: Store = None,
    device: Device = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue an existing run.", metavar="")] = False,
) -> None:
    """Train a run, or continue it if there is one of that name with the same settings."""
    options = {
        "generations": generations,
        "seed": seed,
        "market.data": None if data is None else str(Path(data).expanduser().absolute()),
        "checkpoint.store": _given_store(store, assignments or ()),
        "device": device,
    }
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    config = load_config(preset, [*given, *(assignments or ())])
    start_or_continue(config, default_run_name(config) if run is None else run, fresh=fresh)


@app.command()
@sentences
def resume(
    name: RunName,
    generations: Annotated[int | None, typer.Option(help="Train up to this generation.", metavar="N")] = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Continue a run from its newest good checkpoint; the result is that of a run without a break."""
    continue_run(name, _store(store), generations=generations, device=device)


@app.command()
@sentences
def runs(store: Store = None, as_json: Json = False) -> None:
    """List the runs of a store."""
    from flows.runs import runs_in, status_of

    statuses = [status_of(_store(store), name) for name in runs_in(_store(store))]
    if as_json:
        _print_json(runs_document(statuses))
    elif statuses:
        print_runs(output_console(), statuses)
    else:
        output_console().print(f"There are no runs in {_store(store)}. Start one: eigen train", highlight=False)


@app.command()
@sentences
def show(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show a run: how far it is, and what each generation gave."""
    from flows.runs import status_of

    status = status_of(_store(store), name)
    if as_json:
        _print_json(run_document(status))
    else:
        print_run(output_console(), status)


@app.command()
@sentences
def verify(
    name: RunName,
    deep: Annotated[bool, typer.Option("--deep", help="Compare SHA-256 too, not just sizes.", metavar="")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Look for damage in a run: exit code 0 if it is whole, 1 if it is not, with each file named."""
    from flows.housekeeping import verify_run

    found = verify_run(_store(store), name, deep=deep)
    if as_json:
        _print_json(verification_document(found))
    else:
        print_verification(output_console(), found)
    if found.damages:
        raise typer.Exit(EXIT_OTHER)


@app.command()
@sentences
def clean(
    name: Annotated[str | None, typer.Argument(help="Name of the run.", show_default="all", metavar="[NAME]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be.", metavar="")] = False,
    older_than: Annotated[
        str, typer.Option(help="Files of no generation stay so long: 90s, 30m, 12h, 7d.", metavar="TIME")
    ] = "1d",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Remove generations that need not stay, and files that belong to none. Runs in use are left alone."""
    from flows.housekeeping import clean_runs, parse_duration

    grace = parse_duration(older_than)
    cleaned = clean_runs(_store(store), None if name is None else [name], grace, dry_run=dry_run)
    if as_json:
        _print_json(cleaned_document(cleaned))
    else:
        print_cleaned(output_console(), cleaned, dry_run=dry_run)


@app.command()
@sentences
def export(
    name: RunName,
    champion: Annotated[Path, typer.Option(help="File to write, a safetensors file.", metavar="FILE")],
    store: Store = None,
) -> None:
    """Write the champion's weights, with the configuration in the header, into a file."""
    from flows.housekeeping import export_champion

    output_console().print(export_champion(_store(store), name, champion), highlight=False, soft_wrap=True)


@app.command()
@sentences
def presets(
    name: Annotated[str | None, typer.Argument(help="Explain every setting of this preset.", metavar="[NAME]")] = None,
    as_json: Json = False,
) -> None:
    """List the presets, or explain every setting of one."""
    if name is None:
        if as_json:
            _print_json(presets_document())
        else:
            print_presets(output_console())
        return
    config = load_config(name)
    if as_json:
        _print_json(settings_document(config))
    else:
        print_settings(output_console(), config)


def _given_store(given: str | None, assignments: Sequence[str] = ()) -> str | None:
    """Return the store that was given as an option, else that of the environment unless a setting names another."""
    if given is not None or any(assignment.strip().startswith("checkpoint.store") for assignment in assignments):
        return given
    return store_from_environment(os.environ)


def _store(given: str | None) -> str:
    return _given_store(given) or Config().checkpoint.store


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2))


def _say(sentence: str) -> None:
    typer.echo(f"eigen: {sentence}", err=True)


def main() -> None:
    """Run the command line; the entry point of the script `eigen`."""
    app()


if __name__ == "__main__":
    main()
