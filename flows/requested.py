"""With which configuration a run was asked for, until a checkpoint tells it. No Prefect in here."""

from collections.abc import Mapping

from pydantic import JsonValue

from eigen_core.checkpoint import RunPlace
from eigen_core.records import Record
from flows.journal import Journal


class Request(Record):
    """A request for more, or something else, than a run was configured with."""

    generation: int
    """The newest complete generation then; 0: none."""
    config: dict[str, JsonValue]
    """The configuration from the next generation on."""


_REQUESTS = Journal("requests.json", Request)


def remember_request(place: RunPlace, generation: int, config: Mapping[str, JsonValue]) -> None:
    """Keep the configuration with which a run goes on after `generation`: it may be stopped before the next one."""
    _REQUESTS.append(place, Request(generation=generation, config=dict(config)))


def requested_config(place: RunPlace, generation: int) -> dict[str, JsonValue] | None:
    """Return the configuration that was asked for after the newest `generation` of a run; None if none was."""
    last = _REQUESTS.read(place)[-1:]
    return next((request.config for request in last if request.generation == generation), None)
