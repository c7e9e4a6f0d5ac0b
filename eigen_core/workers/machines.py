"""The workers of a run, and which of them are on one machine."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from eigen_core.machine import SharedTensor

OWN_MACHINE = 0
"""Number of the machine of the process that leads."""


@dataclass
class Worker:
    """A worker that has this run.

    Attributes:
        address: by which the scheduler knows it.
        actor: of its `ResidentAgents`, by which Dask keeps them; None: they were let go.
        machine: number of the machine that it is on, whose workers read one replay; `OWN_MACHINE`: this process's.
        probe: memory of it, which those on its machine can read; None where none is shared.
        gpu: that it computes on, by a name that no other has; None: the processor.
        kept: digests of the agents that it has.
        written: transitions ever appended to the replay that it shares with its machine; None: it shares none.
    """

    address: str
    actor: Future[Any] | None
    machine: int = OWN_MACHINE
    probe: SharedTensor | None = None
    gpu: str | None = None
    kept: set[str] = field(default_factory=set)
    written: int | None = None


def machine_of(
    worker: Worker,
    others: Collection[Worker],
    own_probe: SharedTensor | None,
    reads: Callable[[Worker, SharedTensor], bool],
) -> int:
    """Return the machine of a worker: that whose workers can read its memory as it can read theirs, or a new one.

    It is on `OWN_MACHINE` if it can read the memory of the process that leads, which reads none of a worker.

    Args:
        worker: with its probe.
        others: those whose machine is known.
        own_probe: memory of the process that leads; None: it shares none.
        reads: returns whether a worker can read a probe.
    """
    if own_probe is not None and reads(worker, own_probe):
        return OWN_MACHINE
    machines: dict[int, bool] = {}
    for other in (other for other in others if other.machine != OWN_MACHINE):
        both = (
            worker.probe is not None
            and other.probe is not None
            and reads(worker, other.probe)
            and reads(other, worker.probe)
        )
        machines[other.machine] = machines.get(other.machine, True) and both
    return next((machine for machine, both in machines.items() if both), max(machines, default=OWN_MACHINE) + 1)
