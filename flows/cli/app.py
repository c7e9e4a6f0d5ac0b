"""The command line `eigen`. Torch and Prefect take seconds to import: commands import them when they need them."""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, cast

import typer

from eigen_core import __version__
from eigen_core.common.process import set_umask
from flows.cli import doctor, download, judging, plan, runs, server, sweep, training, walk
from flows.cli.common import sentences
from flows.server.prefect_settings import refuse_settings_of_the_folder

_EXAMPLES = """[bold]Examples[/]

  eigen doctor                             what is missing here for a training?
  eigen plan --preset eigen2               does it fit into memory, and how long does it take?
  eigen download yfinance AAPL MSFT --from 2010-01-01 --out stocks
  eigen audit --data prices.csv            what is wrong with the prices? does a feature use later days?
  eigen train                              the bundled prices, 10 generations
  eigen train --run first --generations 3
  eigen resume first --generations 10
  eigen show first
  eigen backtest first                     what would the champion have earned?
  eigen report first                       what would it have earned? one HTML file
  eigen compare first second
  eigen trust --trials 20                  how far can verdicts on these prices be trusted?
  eigen memory first                       what took the memory?
  eigen verify first --deep                is every file as it was written?
  eigen export first --champion champion.safetensors
  eigen walk years --folds 6               train and play fold after fold through the years
  eigen presets quickstart                 every setting, explained

[bold]For days, unattended[/]

  eigen up                                 server, pages and worker, in the background
  eigen launch --preset eigen2 --run long  train on the worker; resumed automatically until it is finished
  eigen status                             what runs, how far it is
  eigen logs long -f                       what its flow runs have logged
  eigen down                               stop all of it; the next `eigen up` goes on

[bold]Exit codes[/]

  0  done
  1  stopped, or failed; verify: damage was found; doctor: a check failed;
     audit: a feature uses later days; status: a component is not running
  2  what was given cannot be used; a sentence says why
  3  memory: the run does not fit, or the memory guard has stopped it
"""

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
@sentences
def eigen(
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True, metavar="")
    ] = False,
) -> None:
    """Train a population of trading agents by evolutionary reinforcement learning."""
    set_umask(os.environ)
    refuse_settings_of_the_folder()


for command in (
    *(doctor.doctor, plan.plan, download.download, judging.audit, judging.backtest, judging.trust, judging.act),
    *(training.train, training.resume, sweep.sweep, walk.walk, runs.runs, runs.show, judging.report, judging.compare),
    *(judging.importance, runs.memory, runs.verify, runs.clean, runs.export, plan.presets),
    *(server.up, server.down, server.status, server.launch, server.logs, server.alerts, server.deploy),
):
    app.command(epilog=vars(command).get("examples"))(sentences(command))


def main() -> None:
    """Run the command line; the entry point of the script `eigen`."""
    for stream in (sys.stdout, sys.stderr):
        # What the encoding of a terminal or a log lacks must not end a training.
        cast(TextIOWrapper, stream).reconfigure(errors="backslashreplace")
    app()
