"""Agents of a run, computed by the workers of a Dask scheduler."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from distributed import ActorFuture, Future, KilledWorker
from torch import Tensor

from eigen_core.arithmetic import Arithmetic, arithmetic_of
from eigen_core.config import Config
from eigen_core.config.stored import stored_values
from eigen_core.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.generation.groups import Episodes, Played
from eigen_core.generation.state import resolve_device
from eigen_core.learners import LearningPlan
from eigen_core.memory import SharedTensor, shared_probe, shares_memory
from eigen_core.population import Population
from eigen_core.progress import report_progress
from eigen_core.replay import Replay
from eigen_core.workers.connection import connected, key_of
from eigen_core.workers.machines import OWN_MACHINE, Worker, machine_of
from eigen_core.workers.messages import (
    Arrays,
    SentAgents,
    SentTransitions,
    SharedTransitions,
    agent_digests,
    array_bytes,
    from_arrays,
    to_arrays,
)
from eigen_core.workers.resident import ResidentAgents

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_BEGINNING, _SENDING = "it began with the run", "it was sent transitions"

_FIRST_WORKER_SECONDS = 60.0
_LOOK_SECONDS = 0.5
"""Time between two looks at which workers are still there, while they compute."""


@dataclass(frozen=True)
class _Call:
    """A method of a worker, with its arguments, and what the worker does by it, in words."""

    worker: Worker
    method: str
    arguments: tuple[Any, ...]
    what: str


def agent_shares(agents: slice, workers: int) -> list[slice]:
    """Cut consecutive agents into as many shares of nearly the same size, at most one for each of the workers."""
    count = agents.stop - agents.start
    shares = min(count, workers)
    ends = [agents.start + count * share // shares for share in range(shares + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


class WorkerExecutor:
    """Computes agents on the workers of a scheduler. Implements `Executor`; a context manager.

    Each worker keeps the run's task and learner and the agents that it computed last. Those on this machine read the
    replay of this process; on each other machine one worker keeps a copy, which the others there read. What crosses are
    agents that a worker does not have, new transitions for the copies, and what was computed. Workers that join are
    used from the next phase on.

    Args:
        run: its name, by which `workers_of` shows it.
        config: of the run.
        content: what the task is built from, for workers that do not find it themselves.
        fingerprint: hash of the data that the run plays on.
        scheduler: its address, for example `tcp://host:8786`.
        before_phase: called before each phase; starts workers that are missing, if that is in this process's power.

    Attributes:
        sent_bytes, received_bytes: of all arrays that crossed since the object was made.

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
        self.sent_bytes = self.received_bytes = 0
        self._run = run
        self._config, self._content, self._fingerprint = config, content, fingerprint
        self._scheduler = scheduler
        self._device = resolve_device(config.device)
        self._before_phase = before_phase
        self._workers: dict[str, Worker] = {}
        self._task_state: Arrays = {}
        self._generation = 0
        self._probe = shared_probe() if shares_memory(self._device.type) else None
        self._client = connected(scheduler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._let_go()
        self._client.close()  # type: ignore[no-untyped-call] # distributed has no annotation here

    def __str__(self) -> str:
        """Where agents are computed, in words."""
        return f"workers of {self._scheduler}"

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of all arrays that crossed since the object was made."""
        return self.sent_bytes + self.received_bytes

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of the workers that computed last."""
        return tuple(self._workers)

    def play(self, population: Population, episodes: Episodes) -> Played:
        """Play the episodes of all agents; see `Executor.play`."""
        digests = agent_digests(population)
        self._task_state, self._generation = to_arrays(episodes.task_state), episodes.generation
        calls = (
            _Call(
                worker,
                "play",
                (self._sent_agents(worker, population, agents, digests), episodes.rows(agents)),
                _computing(agents),
            )
            for worker, agents in self._shares(slice(0, population.size))
        )
        parts: list[tuple[Played, Arrays]] = self._computed("evaluate", calls)
        return Played.joined(
            [
                replace(played, training=replace(played.training, transitions=from_arrays(rows)))
                for played, rows in parts
            ]
        )

    def learn(
        self, population: Population, groups: Sequence[slice], plan: LearningPlan, replay: Replay
    ) -> dict[str, Tensor]:
        """Let agents learn; see `Executor.learn`."""
        digests = agent_digests(population)
        shares = self._shares(slice(groups[0].start, groups[-1].stop))
        where = self._brought([worker for worker, _ in shares], replay)
        calls = (
            _Call(
                worker,
                "learn",
                (
                    self._sent_agents(worker, population, agents, digests),
                    plan.rows(agents),
                    where[worker.address],
                    self._task_state,
                    self._generation,
                ),
                _computing(agents),
            )
            for worker, agents in shares
        )
        learned = self._computed("train", calls)
        for (worker, agents), (rows, kept, _) in zip(shares, learned, strict=True):
            population.put(agents, Population.from_tensors(from_arrays(rows), population.weights.device))
            worker.kept = set(kept)
        curves = [of_share for *_, of_share in learned]
        return {name: torch.cat([torch.from_numpy(part[name]) for part in curves]) for name in curves[0]}

    def _brought(self, workers: Sequence[Worker], replay: Replay) -> Mapping[str, SharedTransitions | None]:
        """Bring the replay to each machine, once; return where each worker reads it. None: it shares it itself."""
        sharing: dict[int, Worker] = {}
        # One that shares it already goes on.
        for worker in sorted(workers, key=lambda one: one.written is None):
            sharing.setdefault(worker.machine, worker)
        own = sharing.pop(OWN_MACHINE, None)
        # What several lack is picked once.
        lacking = {before: SentTransitions.of(replay, before) for before in {one.written for one in sharing.values()}}
        calls = (
            _Call(worker, "share_replay", (lacking[worker.written], self._generation), _SENDING)
            for worker in sharing.values()
        )
        shared = dict(zip(sharing, self._computed("replay", calls) if sharing else (), strict=True))
        for worker in workers:
            # One that reads from another has nothing of its own any more.
            worker.written = replay.written if sharing.get(worker.machine) is worker else None
        if own is not None:
            shared[OWN_MACHINE] = SharedTransitions(replay.share(), replay.written)
        return {
            worker.address: None if sharing.get(worker.machine) is worker else shared[worker.machine]
            for worker in workers
        }

    def _shares(self, agents: slice) -> list[tuple[Worker, slice]]:
        workers = self._ready()
        return list(zip(workers, agent_shares(agents, len(workers)), strict=False))

    def _sent_agents(self, worker: Worker, population: Population, agents: slice, digests: Sequence[str]) -> SentAgents:
        sent = SentAgents.of(population, agents, digests, worker.kept)
        worker.kept = set(sent.digests)
        return sent

    def _computed(self, name: str, calls: Iterable[_Call]) -> list[Any]:
        """Make the calls, all at once; return what they return, in order.

        Whatever goes wrong, also while a call is put together, all workers begin anew: some may still compute.

        Args:
            name: of the progress that is reported.
            calls: one for each worker that is needed.
        """
        made, futures = [], []
        try:
            for call in calls:
                self.sent_bytes += array_bytes(call.arguments)
                made.append(call)
                futures.append(self._call(call.worker, call.method, *call.arguments))
            return self._results(name, made, futures)
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Let all workers free what they have of this run."""
        for worker in self._workers.values():
            # A traceback may keep the worker, and its actor there, for as long as a failure is remembered.
            worker.actor = None
        self._workers.clear()

    def _call(self, worker: Worker, method: str, *arguments: Any) -> ActorFuture[Any]:  # noqa: ANN401 - of any method
        """Call a method of a worker.

        Raises:
            WorkerLostError: the scheduler knows already that it is not there any more.
        """
        # An actor finds its client in the thread that calls it.
        with self._client.as_current():
            try:
                called = getattr(worker.actor, method)
            except RuntimeError as error:
                raise WorkerLostError(f"worker {worker.address} was lost before it was asked to {method}.") from error
            future: ActorFuture[Any] = called(*arguments)
        return future

    def _results(self, name: str, calls: Sequence[_Call], futures: Sequence[ActorFuture[Any]]) -> list[Any]:
        results = []
        for done, (call, future) in enumerate(zip(calls, futures, strict=True)):
            progress = partial(report_progress, name, done, len(calls))
            result = self._awaited(future, call.worker.address, call.what, progress)
            self.received_bytes += array_bytes(result)
            results.append(result)
        report_progress(name, len(calls), len(calls))
        return results

    def _awaited(
        self,
        future: ActorFuture[Result] | Future[Result],
        address: str,
        what: str,
        progress: Callable[[], None] = lambda: None,
    ) -> Result:
        """Wait for what a worker does, as long as the worker is there.

        Raises:
            WorkerLostError: it is not there any more.
        """
        while True:
            progress()
            try:
                return future.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                lost = address not in self.addresses()
                cause: BaseException | None = None
            except (OSError, KilledWorker) as error:
                lost, cause = True, error
            if lost:
                raise WorkerLostError(f"worker {address} was lost while {what}.") from cause

    def addresses(self) -> list[str]:
        """Return the addresses of the workers that are there, in an order that stays.

        Raises:
            SchedulerLostError: the scheduler cannot be reached.
        """
        try:
            return sorted(self._client.nthreads())  # type: ignore[no-untyped-call] # distributed has no annotation here
        except (OSError, TimeoutError) as error:
            raise SchedulerLostError(
                f"scheduler {self._scheduler} cannot be reached any more ({error}): start it and its workers again and "
                "resume the run."
            ) from error

    def _ready(self) -> list[Worker]:
        """Return the workers, each with this run; those that are new are given it first.

        Raises:
            WorkerLostError: there are none.
        """
        began = time.monotonic()
        while True:
            self._before_phase()
            addresses = self.addresses()
            self._workers = {address: self._workers[address] for address in addresses if address in self._workers}
            self._begin([address for address in addresses if address not in self._workers])
            if self._workers:
                return [self._workers[address] for address in addresses if address in self._workers]
            if time.monotonic() - began > _FIRST_WORKER_SECONDS:
                raise WorkerLostError(
                    f"scheduler {self._scheduler} has no workers: start some, for example with "
                    f"`dask worker {self._scheduler} --nthreads 1`."
                )
            report_progress("workers", 0, 1)
            time.sleep(_LOOK_SECONDS)

    def _begin(self, addresses: Sequence[str]) -> None:
        """Give the run to workers that do not have it yet. Those that are lost meanwhile are left out."""
        stored = stored_values(self._config)
        futures = {
            address: self._client.submit(
                ResidentAgents,
                stored,
                self._fingerprint,
                workers=[address],
                allow_other_workers=False,
                actor=True,
                pure=False,
                key=key_of(self._run),
            )
            for address in addresses
        }
        opened = []
        for address, future in futures.items():
            with _left_out_if_lost():
                worker = Worker(address, self._awaited(future, address, _BEGINNING))
                opened.append((worker, self._call(worker, "open")))
        for worker, opening in opened:
            with _left_out_if_lost():
                self._check(worker, opening)
                self._workers[worker.address] = worker

    def _check(self, worker: Worker, opening: ActorFuture[Arithmetic | None]) -> None:
        """Send a worker data that it did not find, find its machine, and warn if it computes with something else."""
        there, here = self._awaited(opening, worker.address, _BEGINNING), arithmetic_of(self._device)
        if there is None:
            self.sent_bytes += array_bytes(self._content)
            there = self._awaited(self._call(worker, "open", self._content), worker.address, _BEGINNING)
        if there is None:
            raise InputError(f"worker {worker.address} builds other data than this process from what it was sent.")
        worker.probe = self._asked(worker, "shared")
        worker.machine = machine_of(worker, self._workers.values(), self._probe and self._probe[1], self._reads)
        if there != here:
            logger.warning(
                "Worker %s computes with %s, this process with %s: bits may differ from those of a run that one "
                "machine computes.",
                worker.address,
                there,
                here,
            )

    def _reads(self, worker: Worker, probe: SharedTensor) -> bool:
        return bool(self._asked(worker, "reads", probe))

    def _asked(self, worker: Worker, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - of any method
        """Return what a method of a worker returns while it begins with the run."""
        return self._awaited(self._call(worker, method, *arguments), worker.address, _BEGINNING)


def _computing(agents: slice) -> str:
    return f"it computed agents {agents.start} to {agents.stop - 1}"


@contextmanager
def _left_out_if_lost() -> Iterator[None]:
    try:
        yield
    except WorkerLostError as error:
        logger.warning("%s The phase goes on with the others.", error)
