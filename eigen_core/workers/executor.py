"""The executor of runs with workers: the agents play and learn on the workers of a Dask scheduler."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise, starmap
from typing import Any

import torch
from distributed import KilledWorker
from torch import Tensor

from eigen_core.common.errors import InputError, WorkerLostError
from eigen_core.common.progress import report_progress
from eigen_core.config import Config
from eigen_core.generation.executor import EpisodeResults, Episodes
from eigen_core.generation.state import resolve_device
from eigen_core.learning.interface import LearningPlan
from eigen_core.machine.allocation import shared_memory_check, shares_memory
from eigen_core.machine.reproducibility import arithmetic_of
from eigen_core.networks.population import Population
from eigen_core.task.replay import Replay
from eigen_core.workers.connection import (
    OWN_MACHINE,
    POLL_SECONDS,
    Arrays,
    SentTransitions,
    SharedTransitions,
    Worker,
    WorkerClient,
    raise_failure,
    to_arrays,
    to_tensors,
    worker_command,
)
from eigen_core.workers.worker import CODE, WorkerAgents

logger = logging.getLogger(__name__)

_STARTING = "it started the run"
# Time in which an idle worker starts the run; the first call imports all libraries.
_PATIENCE_SECONDS = 20.0
_FIRST_WORKER_SECONDS = 60.0


class WorkerExecutor(AbstractContextManager["WorkerExecutor"]):
    """Computes agents on the workers of a scheduler. Implements `Executor`; a context manager.

    Each worker keeps the run's task and learner. Workers on this machine read the replay buffer of this process; on
    each other machine one worker keeps a copy, which the other workers there read. Each phase sends the agents to the
    workers, and new transitions to the copies; results come back. Workers that join are used from the next phase on.

    `content` is the task's data, for workers that do not find them; `fingerprint` is their hash. `before_phase` is
    called before each phase, to start workers that are missing. `InputError` if no scheduler can be reached.
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
        self._probe = shared_memory_check() if shares_memory(self._device.type) else None
        self._before_phase = before_phase
        self._generation = 0
        self._workers: dict[str, Worker] = {}
        self._starting: dict[str, tuple[Worker, Future[None]]] = {}
        self._lost: dict[str, WorkerLostError] = {}
        self._client = WorkerClient(scheduler)

    def __exit__(self, *_error: object) -> None:
        self._release()
        self._client.close()

    def __str__(self) -> str:
        return f"workers of {self._client.scheduler}"

    @property
    def sent_bytes(self) -> int:
        return self._client.sent_bytes

    @property
    def exchanged_bytes(self) -> int:
        return self._client.sent_bytes + self._client.received_bytes

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of the workers that computed the last phase; empty after a phase that failed."""
        return tuple(self._workers)

    def addresses(self) -> list[str]:
        """Return the addresses of all workers of the scheduler."""
        return self._client.addresses()

    def play(self, population: Population, episodes: Episodes) -> EpisodeResults:
        self._generation = episodes.generation
        # Playing needs only weights and hyperparameters of an agent.
        own = {population.hyperparameter_key(name): values for name, values in population.hyperparameters.items()}
        playing, task_state = to_arrays({"weights": population.weights, **own}), to_arrays(episodes.task_state)
        # The task's state is sent as arrays: its tensors are on this process's device, which a worker may lack.
        stateless = replace(episodes, task_state={})
        parts: list[tuple[EpisodeResults, Arrays]] = self._call(
            "evaluate",
            "play",
            [
                (worker, _computing(agents), (_rows(playing, agents), stateless.rows(agents), task_state))
                for worker, agents in self._shares(slice(0, population.size))
            ],
        )
        return EpisodeResults.joined(
            [replace(played, training=replace(played.training, transitions=to_tensors(rows))) for played, rows in parts]
        )

    def learn(
        self,
        population: Population,
        agents: slice,
        plan: LearningPlan,
        replay: Replay,
        task_state: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        whole, state = to_arrays(population.tensors()), to_arrays(task_state)
        shares = self._shares(agents)
        where = self._share_replay([worker for worker, _ in shares], replay)
        learned = self._call(
            "train",
            "learn",
            [
                (worker, _computing(agents), (_rows(whole, agents), plan.rows(agents), where[worker.address], state))
                for worker, agents in shares
            ],
        )
        for (_, agents), (rows, _) in zip(shares, learned, strict=True):
            population.put(agents, Population.from_tensors(to_tensors(rows), population.weights.device))
        curves = [of_share for _, of_share in learned]
        return {name: torch.cat([torch.from_numpy(part[name]) for part in curves]) for name in curves[0]}

    def _share_replay(self, workers: Sequence[Worker], replay: Replay) -> Mapping[str, SharedTransitions | None]:
        """Bring the copies of the replay up to date; return where each worker reads it (None: it has the copy)."""
        sharing: dict[str, Worker] = {}
        # A worker that already shares a copy of the replay continues to.
        for worker in sorted(workers, key=lambda one: one.written is None):
            sharing.setdefault(worker.machine, worker)
        own = sharing.pop(OWN_MACHINE, None)
        # The copies on several machines may lack the same transitions.
        lacking = {before: SentTransitions.of(replay, before) for before in {one.written for one in sharing.values()}}
        sent = [(worker, "it was sent transitions", (lacking[worker.written],)) for worker in sharing.values()]
        shared = dict(zip(sharing, self._call("replay", "share_replay", sent) if sent else (), strict=True))
        if own is not None:
            shared[OWN_MACHINE] = SharedTransitions(replay.share(), replay.written)
        where: dict[str, SharedTransitions | None] = {}
        for worker in workers:
            shares_itself = sharing.get(worker.machine) is worker
            # A worker that reads from another keeps no replay of its own.
            worker.written = replay.written if shares_itself else None
            where[worker.address] = None if shares_itself else shared[worker.machine]
        return where

    def _shares(self, agents: slice) -> list[tuple[Worker, slice]]:
        """Cut consecutive agents into slices of nearly the same size, at most one for each worker that is ready."""
        workers, number = self._ready(), agents.stop - agents.start
        shares = min(number, len(workers))
        ends = [agents.start + number * share // shares for share in range(shares + 1)]
        return list(zip(workers, starmap(slice, pairwise(ends)), strict=False))

    def _call(self, phase: str, method: str, calls: Sequence[tuple[Worker, str, tuple[Any, ...]]]) -> list[Any]:
        """Call a method of several workers at once, see `WorkerClient.call`; `phase` is the name for progress."""
        with self._released_on_error():
            calls = [(worker, work, (self._generation, *arguments)) for worker, work, arguments in calls]
            results = self._client.call(method, calls, lambda done: report_progress(phase, done, len(calls)))
            report_progress(phase, len(calls), len(calls))
            return results

    @contextmanager
    def _released_on_error(self) -> Iterator[None]:
        """Release all workers (`_release`) if the block fails, since some may still compute."""
        try:
            yield
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Let all workers free their part of this run, and cancel pending starts."""
        for _, start in self._starting.values():
            start.cancel()
        for worker in (*self._workers.values(), *(worker for worker, _ in self._starting.values())):
            # A traceback may keep the worker, and its actor there, for as long as a failure is remembered.
            worker.actor = None
        for known in (self._workers, self._starting, self._lost):
            known.clear()

    def _ready(self) -> list[Worker]:
        """Return the workers that have started this run, by address; wait for one, `WorkerLostError` if none comes."""
        with self._released_on_error():
            began = time.monotonic()
            self._start_new()
            # If others have started, do not wait for a worker that is busy, for example with a whole run.
            while not self._workers or not all(_is_late(worker) for worker, _ in self._starting.values()):
                if not self._starting and time.monotonic() - began > _FIRST_WORKER_SECONDS:
                    raise self._no_workers_error()
                report_progress("workers", 0, 1)
                if not self._starting:
                    time.sleep(POLL_SECONDS)
                wait([start for _, start in self._starting.values()], POLL_SECONDS, FIRST_COMPLETED)
                self._start_new()
            self._workers = dict(sorted(self._workers.items()))
            return list(self._workers.values())

    def _start_new(self) -> None:
        """Start the run in new workers, and use those that have started it; raise the error of one that failed."""
        self._before_phase()
        addresses = self.addresses()
        self._workers = {address: worker for address, worker in self._workers.items() if address in addresses}
        self._lost = {address: error for address, error in self._lost.items() if address in addresses}
        for address in addresses:
            if address not in {**self._workers, **self._starting, **self._lost}:
                worker = self._client.make(WorkerAgents, self._run, address, *self._arguments)
                self._starting[address] = worker, self._client.start(self._begin(worker))
        for address, (worker, start) in list(self._starting.items()):
            if address not in addresses:
                self._leave_out(worker, worker.lost(_STARTING))
            elif start.done():
                try:
                    raise_failure(start)
                except WorkerLostError as error:
                    self._leave_out(worker, error)
                else:
                    del self._starting[address]
                    self._workers[address] = worker
        self._warn_of_late()

    def _no_workers_error(self) -> WorkerLostError:
        scheduler = self._client.scheduler
        message = f"scheduler {scheduler} has no workers: start some, for example with `{worker_command(scheduler)}`."
        for failure in self._lost.values():
            message = (
                f"{failure} No worker of scheduler {scheduler} could start the run: let this machine reach their "
                "ports, which `--worker-port` of `dask worker` sets."
            )
        return WorkerLostError(message)

    async def _begin(self, worker: Worker) -> None:
        """Start the run in a worker, which opens its data; if it does not find them, they are sent."""
        await _wait_for_actor(worker)
        arguments = (worker, _STARTING, "open", 0, self._probe and self._probe[1])
        opened = await self._client.ask(*arguments) or await self._client.ask(*arguments, self._content)
        if opened is None:
            raise InputError(
                f"worker {worker.address} prepares other data than this process: install the same versions of the "
                "libraries there."
            )
        there, worker.machine = opened
        here = arithmetic_of(self._device)
        if there != here:
            logger.warning(
                "Worker %s computes with %s, this process with %s: bits may differ from those of a run that one "
                "machine computes. Runs with instructions=avx2 agree on one maker's CPUs with AVX2 and AVX-512.",
                *(worker.address, there, here),
            )

    def _warn_of_late(self) -> None:
        late = [worker for worker, _ in self._starting.values() if _is_late(worker) and not worker.is_reported]
        if late:
            logger.warning(
                "No answer from workers %s: busy or not reachable. Any that answer are used from the next phase on. %s",
                ", ".join(worker.address for worker in late),
                "The phase goes on with the others." if self._workers else "The phase waits until one is free.",
            )
        for worker in late:
            worker.is_reported = True

    def _leave_out(self, worker: Worker, error: WorkerLostError) -> None:
        """Ignore a worker until it joins the scheduler again or a phase fails: it may be unreachable from here."""
        self._starting.pop(worker.address)[1].cancel()
        worker.actor = None
        others = self._workers or self._starting
        logger.warning("%s%s", error, " The phase goes on with the others." if others else "")
        self._lost[worker.address] = error


def _rows(arrays: Arrays, agents: slice) -> Arrays:
    return {name: rows[agents] for name, rows in arrays.items()}


def _computing(agents: slice) -> str:
    return f"it computed agents {agents.start} to {agents.stop - 1}"


def _is_late(worker: Worker) -> bool:
    return time.monotonic() - worker.started > _PATIENCE_SECONDS


async def _wait_for_actor(worker: Worker) -> None:
    """Wait until a worker has created its actor; a separate function, since an error keeps its caller's frame."""
    actor = worker.actor
    assert actor is not None
    error = await actor.exception()  # type: ignore[no-untyped-call] # distributed has no annotation here
    if error is not None and not isinstance(error, KilledWorker):
        raise error
    if actor.status != "finished":
        raise worker.lost(_STARTING) from error
