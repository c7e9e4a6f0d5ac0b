"""Workers that begin with a run: they are given it, and asked what computes there and whose memory they read."""

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from distributed import Client, KilledWorker

from eigen_core.arithmetic import arithmetic_of
from eigen_core.config import Config
from eigen_core.config.stored import stored_values
from eigen_core.errors import InputError, WorkerLostError
from eigen_core.memory import SharedTensor, shared_probe, shares_memory
from eigen_core.workers.calls import LOOK_SECONDS, Call, Calls
from eigen_core.workers.connection import key_of
from eigen_core.workers.machines import Worker, machine_of
from eigen_core.workers.resident import CODE, ResidentAgents

logger = logging.getLogger(__name__)

_WHAT = "it began with the run"
_PATIENCE_SECONDS = 10.0
"""Time in which a worker that does nothing else begins; the first call imports all libraries."""
_STEP_SECONDS = 0.02


@dataclass
class _Asked:
    """A worker that was asked to begin.

    Attributes:
        worker: its actor is there once it has a thread to make it.
        since: when it was asked, to make its actor or to open the data.
        opening: the call of `open`; None: the actor is not there yet.
        is_named: a warning has said that it does not answer.
    """

    worker: Worker
    since: float
    opening: Call | None = None
    is_named: bool = False

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.since > _PATIENCE_SECONDS


class Beginners:
    """Workers that were asked to begin with a run and have not begun yet.

    One whose thread does something else, for example a whole run, begins once that is done: nothing waits for it as
    long as others have the run.

    Args:
        run: its name.
        config: of the run.
        content: what the task is built from, for workers that do not find it themselves.
        fingerprint: hash of the data that the run plays on.
        device: of this process.
        client: of the scheduler.
        calls: calls the workers.
    """

    def __init__(
        self,
        run: str,
        config: Config,
        content: Any,  # noqa: ANN401 - the task's own
        fingerprint: str,
        device: torch.device,
        client: Client,
        calls: Calls,
    ) -> None:
        self._run, self._content, self._fingerprint = run, content, fingerprint
        self._stored = stored_values(config)
        self._device = device
        self._client = client
        self._calls = calls
        self._probe = shared_probe() if shares_memory(device.type) else None
        self._asked: dict[str, _Asked] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._asked)

    @property
    def are_late(self) -> bool:
        """Whether those that there are do something else."""
        return all(asked.is_late for asked in self._asked.values())

    def ask(self, addresses: Collection[str]) -> None:
        """Ask the workers at `addresses` that were not asked yet; all others are left out."""
        for address in [address for address in self._asked if address not in addresses]:
            self._leave_out(address, _lost(address))
        for address in addresses:
            if address not in self._asked:
                actor = self._client.submit(
                    ResidentAgents,
                    self._stored,
                    self._fingerprint,
                    CODE,
                    workers=[address],
                    allow_other_workers=False,
                    actor=True,
                    pure=False,
                    key=key_of(self._run),
                )
                self._asked[address] = _Asked(Worker(address, actor), time.monotonic())

    def join(self, workers: dict[str, Worker]) -> None:
        """Add those that have begun to `workers`, by address; wait a moment for those that are not late.

        Raises:
            InputError: a worker builds other data from what it was sent.
            Exception: what a worker has raised.
        """
        end = time.monotonic() + LOOK_SECONDS
        while True:
            for address, asked in list(self._asked.items()):
                with self._left_out_if_lost(address):
                    if self._has_opened(asked):
                        self._complete(asked, workers.values())
                        workers[address] = self._asked.pop(address).worker
            if not self._asked or (workers and self.are_late) or time.monotonic() > end:
                break
            time.sleep(_STEP_SECONDS)
        self._name_late(goes_on=bool(workers))

    def let_go(self) -> None:
        """Let all free what they have of the run, and not begin if they have not."""
        for asked in self._asked.values():
            asked.worker.actor = None
        self._asked.clear()

    def _has_opened(self, asked: _Asked) -> bool:
        """Go on with the beginning of a worker as far as it goes without waiting; return whether it has the run."""
        if asked.opening is None and _is_made(asked.worker):
            asked.opening = self._calls.call(asked.worker, _WHAT, "open")
            asked.since = time.monotonic()
        return asked.opening is not None and asked.opening.answer.done()

    def _complete(self, asked: _Asked, others: Collection[Worker]) -> None:
        """Send a worker data that it did not find, find its machine, and warn of what computes there."""
        assert asked.opening is not None
        worker = asked.worker
        [there], here = self._calls.answers([asked.opening]), arithmetic_of(self._device)
        if there is None:
            there = self._returned(worker, "open", self._content)
        if there is None:
            raise InputError(f"worker {worker.address} builds other data than this process from what it was sent.")
        there, worker.gpu = there
        worker.probe = self._returned(worker, "shared")
        worker.machine = machine_of(worker, others, self._probe and self._probe[1], self._reads)
        if there != here:
            logger.warning(
                "Worker %s computes with %s, this process with %s: bits may differ from those of a run that one "
                "machine computes.",
                worker.address,
                there,
                here,
            )
        if worker.gpu is not None and worker.gpu in [other.gpu for other in others]:
            logger.warning(
                "Worker %s computes on the same GPU as another one: each has only a part of its time and memory. Start "
                "one a GPU, each with CUDA_VISIBLE_DEVICES set to its own.",
                worker.address,
            )

    def _reads(self, worker: Worker, probe: SharedTensor) -> bool:
        return bool(self._returned(worker, "reads", probe))

    def _returned(self, worker: Worker, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - of any method
        [returned] = self._calls.answers([self._calls.call(worker, _WHAT, method, *arguments)])
        return returned

    def _name_late(self, goes_on: bool) -> None:
        late = [asked for asked in self._asked.values() if asked.is_late and not asked.is_named]
        if not late:
            return
        logger.warning(
            "No answer from %s, busy with something else: used from the first phase on that begins after that. %s",
            ", ".join(asked.worker.address for asked in late),
            "The phase goes on with the others." if goes_on else "The phase waits until one is free.",
        )
        for asked in late:
            asked.is_named = True

    @contextmanager
    def _left_out_if_lost(self, address: str) -> Iterator[None]:
        try:
            yield
        except WorkerLostError as error:
            self._leave_out(address, error)

    def _leave_out(self, address: str, error: WorkerLostError) -> None:
        logger.warning("%s The phase goes on with the others.", error)
        self._asked.pop(address).worker.actor = None


def _lost(address: str) -> WorkerLostError:
    return WorkerLostError(f"worker {address} was lost while {_WHAT}.")


def _is_made(worker: Worker) -> bool:
    """Return whether the actor of a worker is there.

    Raises:
        WorkerLostError: it will not be, since the worker was lost.
        Exception: what has kept the worker from making it.
    """
    assert worker.actor is not None
    if worker.actor.status == "pending":
        return False
    error = worker.actor.exception() if worker.actor.status == "error" else None  # type: ignore[no-untyped-call] # distributed has no annotation here
    if error is not None and not isinstance(error, KilledWorker):
        raise error
    if worker.actor.status != "finished":
        raise _lost(worker.address) from error
    return True
