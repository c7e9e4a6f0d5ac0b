"""The executor that lets workers of a Dask scheduler compute the agents of a run."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import torch
from distributed import KilledWorker
from torch import Tensor

from eigen_core.common.errors import InputError, WorkerLostError
from eigen_core.common.progress import report_progress
from eigen_core.config import Config
from eigen_core.generation.agents import EpisodeResults, Episodes
from eigen_core.generation.state import resolve_device
from eigen_core.learning import LearningPlan
from eigen_core.machine import shared_probe, shares_memory
from eigen_core.machine.arithmetic import arithmetic_of
from eigen_core.networks.population import Population
from eigen_core.task.replay import Replay
from eigen_core.workers.connection import (
    LOOK_SECONDS,
    OWN_MACHINE,
    Arrays,
    Call,
    SentTransitions,
    SharedTransitions,
    Worker,
    WorkerClient,
    from_arrays,
    raise_failure,
    to_arrays,
    worker_command,
)
from eigen_core.workers.resident import CODE, ResidentAgents

logger = logging.getLogger(__name__)

_STARTING = "it began with the run"
# Time in which a worker that does nothing else begins; the first call imports all libraries.
_PATIENCE_SECONDS = 20.0
_FIRST_WORKER_SECONDS = 60.0


def agent_shares(agents: slice, workers: int) -> list[slice]:
    """Cut consecutive agents into shares of nearly the same size, at most one for each of the workers."""
    number = agents.stop - agents.start
    shares = min(number, workers)
    ends = [agents.start + number * share // shares for share in range(shares + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


class WorkerExecutor:
    """Computes agents on the workers of a scheduler. Implements `Executor`; a context manager.

    Each worker keeps the run's task and learner. Those on this machine read the replay of this process; on each other
    machine one worker keeps a copy, which the others there read. Agents are sent in each phase, and new transitions to
    the copies; results come back. Workers that join are used from the next phase on.

    Args:
        run: its name, by which `workers_of` shows it.
        config: settings of the run.
        content: from which the task is built, for workers that do not find it themselves.
        fingerprint: hash of the run's data.
        scheduler: its address, for example `tcp://host:8786`.
        before_phase: called before each phase; starts workers that are missing, if this process can.

    Raises:
        InputError: the scheduler cannot be reached.
    """

    def __init__(
        self,
        run: str,
        config: Config,
        content: Any,  # noqa: ANN401 - the task's own
        fingerprint: str,
        scheduler: str,
        before_phase: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._content = run, content
        self._arguments = config.model_dump(mode="json"), fingerprint, CODE
        self._device = resolve_device(config.device)
        self._probe = shared_probe() if shares_memory(self._device.type) else None
        self._before_phase = before_phase
        self._generation = 0
        self._workers: dict[str, Worker] = {}
        self._pending: dict[str, _Pending] = {}
        self._lost: dict[str, WorkerLostError] = {}
        self._client = WorkerClient(scheduler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._release()
        self._client.close()

    def __str__(self) -> str:
        """Where agents are computed, in words."""
        return f"workers of {self._client.scheduler}"

    @property
    def sent_bytes(self) -> int:
        """Bytes of all arrays that were sent to workers since the object was made."""
        return self._client.sent_bytes

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of all arrays that crossed since the object was made."""
        return self._client.sent_bytes + self._client.received_bytes

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of the workers that computed last."""
        return tuple(self._workers)

    def addresses(self) -> list[str]:
        """Return the addresses of the workers that are there (`WorkerClient.addresses`)."""
        return self._client.addresses()

    def play(self, population: Population, episodes: Episodes) -> EpisodeResults:
        """Play the episodes of all agents; see `Executor.play`."""
        self._generation = episodes.generation
        # Nothing else of an agent's state is needed to play.
        genes = {population.gene_key(name): values for name, values in population.genes.items()}
        playing, task_state = to_arrays({"weights": population.weights, **genes}), to_arrays(episodes.task_state)
        # Its tensors are on the device of this process, which a worker need not have.
        stateless = replace(episodes, task_state={})
        shares = self._shares(slice(0, population.size))

        def calls() -> Iterator[Call]:
            for worker, agents in shares:
                sent = {name: rows[agents] for name, rows in playing.items()}
                yield self._call(worker, _computing(agents), "play", sent, stateless.rows(agents), task_state)

        parts: list[tuple[EpisodeResults, Arrays]] = self._computed("evaluate", calls())
        return EpisodeResults.joined(
            [
                replace(played, training=replace(played.training, transitions=from_arrays(rows)))
                for played, rows in parts
            ]
        )

    def learn(
        self,
        population: Population,
        groups: Sequence[slice],
        plan: LearningPlan,
        replay: Replay,
        task_state: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Let agents learn; see `Executor.learn`."""
        whole, state = to_arrays(population.tensors()), to_arrays(task_state)
        shares = self._shares(slice(groups[0].start, groups[-1].stop))
        where = self._share_replay([worker for worker, _ in shares], replay)

        def calls() -> Iterator[Call]:
            for worker, agents in shares:
                sent = {name: rows[agents] for name, rows in whole.items()}
                arguments = (sent, plan.rows(agents), where[worker.address], state)
                yield self._call(worker, _computing(agents), "learn", *arguments)

        learned = self._computed("train", calls())
        for (_, agents), (rows, _) in zip(shares, learned, strict=True):
            population.put(agents, Population.from_tensors(from_arrays(rows), population.weights.device))
        curves = [of_share for _, of_share in learned]
        return {name: torch.cat([torch.from_numpy(part[name]) for part in curves]) for name in curves[0]}

    def _share_replay(self, workers: Sequence[Worker], replay: Replay) -> Mapping[str, SharedTransitions | None]:
        """Send the replay to each other machine, once; return where each worker reads it. None: it shares it itself."""
        sharing: dict[str, Worker] = {}
        # One that shares it already goes on.
        for worker in sorted(workers, key=lambda one: one.written is None):
            sharing.setdefault(worker.machine, worker)
        own = sharing.pop(OWN_MACHINE, None)
        # Several may lack the same transitions.
        lacking = {before: SentTransitions.of(replay, before) for before in {one.written for one in sharing.values()}}
        calls = (
            self._call(worker, "it was sent transitions", "share_replay", lacking[worker.written])
            for worker in sharing.values()
        )
        shared = dict(zip(sharing, self._computed("replay", calls) if sharing else (), strict=True))
        if own is not None:
            shared[OWN_MACHINE] = SharedTransitions(replay.share(), replay.written)
        where: dict[str, SharedTransitions | None] = {}
        for worker in workers:
            shares_itself = sharing.get(worker.machine) is worker
            # One that reads from another does not have its own replay any more.
            worker.written = replay.written if shares_itself else None
            where[worker.address] = None if shares_itself else shared[worker.machine]
        return where

    def _shares(self, agents: slice) -> list[tuple[Worker, slice]]:
        workers = self._ready()
        return list(zip(workers, agent_shares(agents, len(workers)), strict=False))

    def _call(self, worker: Worker, work: str, method: str, *arguments: Any) -> Call:  # noqa: ANN401 - of any method
        return self._client.call(worker, work, method, self._generation, *arguments)

    def _computed(self, name: str, calls: Iterable[Call]) -> list[Any]:
        """Make the calls, all at once; return their results, in order. `name`: of the progress that is reported."""
        with self._released_on_error():
            made = list(calls)
            results = self._client.results(made, lambda done: report_progress(name, done, len(made)))
            report_progress(name, len(made), len(made))
            return results

    @contextmanager
    def _released_on_error(self) -> Iterator[None]:
        """Let all workers begin anew if the block fails: some may still compute."""
        try:
            yield
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Let all workers free what they have of this run, and not begin if they have not."""
        for pending in self._pending.values():
            pending.forget()
        self._pending.clear()
        self._lost.clear()
        for worker in self._workers.values():
            # A traceback may keep the worker, and its actor there, for as long as a failure is remembered.
            worker.actor = None
        self._workers.clear()

    def _ready(self) -> list[Worker]:
        """Return the workers that have this run, ordered by address; new ones are given it first.

        Raises:
            WorkerLostError: there are none.
        """
        with self._released_on_error():
            began = time.monotonic()
            self._give_to_new()
            # Nothing waits for one whose thread does something else, such as a whole run, as long as others are there.
            while not self._workers or not all(pending.is_late for pending in self._pending.values()):
                if not self._pending and time.monotonic() - began > _FIRST_WORKER_SECONDS:
                    raise self._without_workers()
                report_progress("workers", 0, 1)
                if not self._pending:
                    time.sleep(LOOK_SECONDS)
                wait([pending.begun for pending in self._pending.values()], LOOK_SECONDS, FIRST_COMPLETED)
                self._give_to_new()
            self._workers = dict(sorted(self._workers.items()))
            return list(self._workers.values())

    def _give_to_new(self) -> None:
        """Give the run to new workers, and use those that have begun.

        Raises:
            InputError: a worker builds other data from the content that it was sent.
            Exception: the error of a worker.
        """
        self._before_phase()
        addresses = self.addresses()
        self._workers = {address: worker for address, worker in self._workers.items() if address in addresses}
        self._lost = {address: error for address, error in self._lost.items() if address in addresses}
        for address in addresses:
            if address not in {**self._workers, **self._pending, **self._lost}:
                worker = self._client.make(ResidentAgents, self._run, address, *self._arguments)
                self._pending[address] = _Pending(worker, self._client.start(self._begin(worker)))
        for address, pending in list(self._pending.items()):
            if address not in addresses:
                self._leave_out(address, pending.worker.lost(_STARTING))
            elif pending.begun.done():
                try:
                    raise_failure(pending.begun)
                except WorkerLostError as error:
                    self._leave_out(address, error)
                else:
                    self._workers[address] = self._pending.pop(address).worker
        self._name_late()

    def _without_workers(self) -> WorkerLostError:
        failure, scheduler = next(iter(self._lost.values()), None), self._client.scheduler
        if failure is not None:
            return WorkerLostError(
                f"{failure} No worker of scheduler {scheduler} could begin: let this machine reach their ports, "
                "which `--worker-port` of `dask worker` sets."
            )
        return WorkerLostError(
            f"scheduler {scheduler} has no workers: start some, for example with `{worker_command(scheduler)}`."
        )

    async def _begin(self, worker: Worker) -> None:
        """Give the run to a worker: it opens the data, which it is sent if it does not find them."""
        await _made(worker)
        probe = self._probe and self._probe[1]
        opened = await self._client.ask(worker, _STARTING, "open", 0, probe)
        if opened is None:
            opened = await self._client.ask(worker, _STARTING, "open", 0, probe, self._content)
        if opened is None:
            raise InputError(f"worker {worker.address} builds other data than this process from what it was sent.")
        there, worker.machine = opened
        here = arithmetic_of(self._device)
        if there != here:
            logger.warning(
                "Worker %s computes with %s, this process with %s: bits may differ from those of a run that one "
                "machine computes.",
                worker.address,
                there,
                here,
            )

    def _name_late(self) -> None:
        late = [each for each in self._pending.values() if each.is_late and not each.is_named]
        if late:
            logger.warning(
                "No answer from %s, busy with something else or not to be reached from here: used from the first phase "
                "on that begins after that. %s",
                ", ".join(pending.worker.address for pending in late),
                "The phase goes on with the others." if self._workers else "The phase waits until one is free.",
            )
        for pending in late:
            pending.is_named = True

    def _leave_out(self, address: str, error: WorkerLostError) -> None:
        """Do not ask a worker again before it has joined anew or a phase has failed: this machine may not reach it."""
        self._pending.pop(address).forget()
        others = self._workers or self._pending
        logger.warning("%s%s", error, " The phase goes on with the others." if others else "")
        self._lost[address] = error


def _computing(agents: slice) -> str:
    return f"it computed agents {agents.start} to {agents.stop - 1}"


@dataclass
class _Pending:
    """A worker that was asked to begin.

    Attributes:
        begun: done when it has begun.
        since: time of the request.
        is_named: a warning has said that it does not answer.
    """

    worker: Worker
    begun: Future[None]
    since: float = field(default_factory=time.monotonic)
    is_named: bool = False

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.since > _PATIENCE_SECONDS

    def forget(self) -> None:
        self.begun.cancel()
        self.worker.actor = None


async def _made(worker: Worker) -> None:
    """Wait until the actor of a worker is there; its own function, since a failure keeps the frame of its caller."""
    actor = worker.actor
    assert actor is not None
    error = await actor.exception()  # type: ignore[no-untyped-call] # distributed has no annotation here
    if error is not None and not isinstance(error, KilledWorker):
        raise error
    if actor.status != "finished":
        raise worker.lost(_STARTING) from error
