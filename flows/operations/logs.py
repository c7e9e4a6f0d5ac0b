"""What happened to a run: what all its flow runs have logged, in the order of time; without a server, what it keeps."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from flows.names import run_tag

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

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
    flow_run: "FlowRun"
    level: str
    message: str


class RunLogs:
    """The logs of a run's flow runs, on the worker and by `eigen train`.

    Args:
        client: of the server.
        run: the name of the run.
    """

    def __init__(self, client: "SyncPrefectClient", run: str) -> None:
        self._client = client
        self._run = run
        self._seen: dict[UUID, datetime] = {}

    def new_lines(self) -> Iterator[LogLine]:
        """Yield what was logged since the last call, oldest first."""
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId, LogFilterTimestamp

        flow_runs = {found.id: found for found in self._flow_runs()}
        since = max(self._seen.values(), default=None)
        after = None if since is None else since - _LATE
        self._seen = {number: moment for number, moment in self._seen.items() if after is None or moment > after}
        wanted = LogFilter(
            flow_run_id=LogFilterFlowRunId(any_=list(flow_runs)),
            timestamp=None if after is None else LogFilterTimestamp(after_=after),
        )
        offset = 0
        while flow_runs and (page := self._client.read_logs(wanted, limit=_PAGE, offset=offset)):
            offset += len(page)
            for log in page:
                if log.id in self._seen or log.flow_run_id is None:
                    continue
                self._seen[log.id] = log.timestamp
                flow_run = flow_runs[log.flow_run_id]
                yield LogLine(log.timestamp, flow_run, logging.getLevelName(log.level), log.message)

    def _flow_runs(self) -> "list[FlowRun]":
        from prefect.client.schemas.filters import (
            FlowFilter,
            FlowFilterName,
            FlowRunFilter,
            FlowRunFilterName,
            FlowRunFilterTags,
        )

        train = FlowFilter(name=FlowFilterName(any_=["train"]))
        found: list[FlowRun] = []
        for theirs in (
            FlowRunFilter(tags=FlowRunFilterTags(all_=[run_tag(self._run)])),
            # One that has ended before it began has no tag: `eigen launch` has named it.
            FlowRunFilter(name=FlowRunFilterName(any_=[self._run])),
        ):
            offset = 0
            while page := self._client.read_flow_runs(
                flow_filter=train, flow_run_filter=theirs, limit=_PAGE, offset=offset
            ):
                found += page
                offset += len(page)
        return found


def kept_events(store: str, run: str) -> list[tuple[str, str]]:
    """Return what a run keeps of its past: moments (ISO 8601, UTC) and what happened, oldest first.

    Raises:
        InputError: there is no such run, or it cannot be read.
        StoreUnavailableError: the store does not answer.
    """
    from flows.journals import ABORTS, ATTEMPTS
    from flows.runs import configured_place, newest_generation

    place, config = configured_place(store, run)
    found = [(entry.moment, f"resumed by schedule, generation {entry.generation}") for entry in ATTEMPTS.read(place)]
    found += [
        (entry.moment, f"stopped in generation {entry.generation}: {entry.reason}") for entry in ABORTS.read(place)
    ]
    newest = newest_generation(place)
    if newest is not None:
        manifest = newest[1]
        found.append((manifest.created, f"last checkpoint: generation {manifest.generation} of {config.generations}"))
    return sorted(found)
