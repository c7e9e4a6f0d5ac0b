"""What happened to a run: the logs of its flow runs in the order of time; without a server, what the run keeps."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    LogFilter,
    LogFilterFlowRunId,
    LogFilterTimestamp,
)
from prefect.client.schemas.objects import FlowRun

from eigen_core.training.journals import ABORTS, ATTEMPTS
from eigen_core.training.runs import Run
from flows.names import run_tag
from flows.operations.flow_runs import TRAININGS

T = TypeVar("T")

_PAGE = 200
# Logs reach the server in batches, from several processes: an older line may come after a newer one.
_LATE = timedelta(minutes=1)


@dataclass(frozen=True)
class LogLine:
    """A line of a flow run's log.

    Attributes:
        moment: when it was logged.
        flow_run: the flow run, as the server knew it when the line was read.
        level: its level, such as INFO.
        message: what it says.
    """

    moment: datetime
    flow_run: FlowRun
    level: str
    message: str


class RunLogs:
    """The logs of a run's flow runs, on the worker and by `eigen train`.

    Args:
        client: of the server.
        run: the name of the run.
    """

    def __init__(self, client: SyncPrefectClient, run: str) -> None:
        self._client = client
        self._run = run
        self._seen: dict[UUID, datetime] = {}

    def new_lines(self) -> Iterator[LogLine]:
        """Yield what was logged since the last call, oldest first."""
        flow_runs = {found.id: found for found in self._flow_runs()}
        since = max(self._seen.values(), default=None)
        after = None if since is None else since - _LATE
        self._seen = {number: moment for number, moment in self._seen.items() if after is None or moment > after}
        wanted = LogFilter(
            flow_run_id=LogFilterFlowRunId(any_=list(flow_runs)),
            timestamp=None if after is None else LogFilterTimestamp(after_=after),
        )
        for log in _all(partial(self._client.read_logs, wanted)) if flow_runs else ():
            if log.id not in self._seen and log.flow_run_id is not None:
                self._seen[log.id] = log.timestamp
                flow_run = flow_runs[log.flow_run_id]
                yield LogLine(log.timestamp, flow_run, logging.getLevelName(log.level), log.message)

    def _flow_runs(self) -> Iterator[FlowRun]:
        # One that has ended before it began has no tag: `eigen launch` has named it.
        either = {"operator": "or_", "tags": {"all_": [run_tag(self._run)]}, "name": {"any_": [self._run]}}
        theirs = FlowRunFilter.model_validate(either)
        return _all(partial(self._client.read_flow_runs, flow_filter=TRAININGS, flow_run_filter=theirs))


def _all(read: Callable[..., Sequence[T]]) -> Iterator[T]:
    """Yield what the server has, page by page."""
    offset = 0
    while page := read(limit=_PAGE, offset=offset):
        offset += len(page)
        yield from page


def kept_events(store: str, run: str) -> list[tuple[str, str]]:
    """Return what a run keeps of its past: moments (ISO 8601, UTC) and what happened, oldest first.

    Raises:
        InputError: there is no such run, or it cannot be read.
        StoreUnavailableError: the store does not answer.
    """
    there = Run.open(store, run)
    location, config = there.location, there.config
    found = [(entry.moment, f"resumed by schedule, generation {entry.generation}") for entry in ATTEMPTS.read(location)]
    found += [
        (entry.moment, f"stopped in generation {entry.generation}: {entry.reason}") for entry in ABORTS.read(location)
    ]
    newest = there.newest
    if newest is not None:
        manifest = newest[1]
        found.append((manifest.created, f"last checkpoint: generation {manifest.generation} of {config.generations}"))
    return sorted(found)
