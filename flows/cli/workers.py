"""The command `eigen workers`: the workers of a Dask scheduler."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.cli.common import Json, sentences
from flows.cli.output import PlainTable, print_line, print_result

WORKERS_EXAMPLES = """[bold]Examples[/]

  dask scheduler                          on one machine; on each of the others:
  dask worker tcp://host:8786 --nthreads 1 --nworkers 16 --memory-limit 0
  eigen workers tcp://host:8786
  eigen train --preset eigen2 --set scheduler=tcp://host:8786
"""


@sentences
def workers(
    scheduler: Annotated[str, typer.Argument(help="Address of the scheduler, for example tcp://host:8786.")],
    as_json: Json = False,
) -> None:
    """Show the workers of a Dask scheduler: where they are, what they use, and which runs they compute."""
    print_result(as_json, _document, _print, scheduler)


def _document(scheduler: str) -> list[dict[str, Any]]:
    from eigen_core.workers import workers_of

    return [asdict(worker) for worker in workers_of(scheduler)]


def _print(console: Console, scheduler: str) -> None:
    from eigen_core.common.units import duration, size
    from eigen_core.workers import worker_command, workers_of

    listed = workers_of(scheduler)
    table = PlainTable("worker", "threads", "CPU", "memory", "last seen", "runs", left=("worker", "runs"))
    for worker in listed:
        table.add_row(
            worker.address,
            str(worker.threads),
            f"{worker.cpu_percent:.0f} %",
            size(worker.memory_bytes),
            f"{duration(worker.seen_seconds_ago)} ago",
            ", ".join(worker.runs),
        )
    table.print(console)
    if not listed:
        print_line(console, f"{scheduler} has no workers: start some with {worker_command(scheduler)}")
