"""The executor that lets workers of a Dask scheduler compute the agents of a run."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
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
    Call,
    Worker,
    WorkerClient,
    raise_failure,
    worker_command,
)
from eigen_core.workers.messages import (
    Arrays,
    SentAgents,
    SentTransitions,
    SharedTransitions,
    agent_digests,
    from_arrays,
    to_arrays,
)
from eigen_core.workers.resident import CODE, ResidentAgents

logger = logging.getLogger(__name__)

_STARTING = "it began with the run"
# Time in which a worker that does nothing else begins; the first call imports all libraries.
_PATIENCE_SECONDS = 10.0
# Time that a phase waits for data on their way to a worker, which does nothing else.
_SENDING_SECONDS = 60.0
_FIRST_WORKER_SECONDS = 60.0
_STEP_SECONDS = 0.02


def agent_shares(agents: slice, workers: int) -> list[slice]:
    """Cut consecutive agents into shares of nearly the same size, at most one for each of the workers."""
    number = agents.stop - agents.start
    shares = min(number, workers)
    ends = [agents.start + number * share // shares for share in range(shares + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


class WorkerExecutor:
    """Computes agents on the workers of a scheduler. Implements `Executor`; a context manager.

    Each worker keeps the run's task and learner and the agents that it computed last. Those on this machine read the
    replay of this process; on each other machine one worker keeps a copy, which the others there read. Sent are agents
    that a worker does not have and new transitions for the copies; results come back. Workers that join are used from
    the next phase on.

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
        digests, self._generation = agent_digests(population), episodes.generation
        task_state = to_arrays(episodes.task_state)
        # Its tensors are on the device of this process, which a worker need not have.
        stateless = replace(episodes, task_state={})
        shares = self._shares(slice(0, population.size))

        def calls() -> Iterator[Call]:
            for worker, agents in shares:
                sent = self._sent_agents(worker, population, agents, digests)
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
        digests, state = agent_digests(population), to_arrays(task_state)
        shares = self._shares(slice(groups[0].start, groups[-1].stop))
        where = self._share_replay([worker for worker, _ in shares], replay)

        def calls() -> Iterator[Call]:
            for worker, agents in shares:
                sent = self._sent_agents(worker, population, agents, digests)
                arguments = (sent, plan.rows(agents), where[worker.address], state)
                yield self._call(worker, _computing(agents), "learn", *arguments)

        learned = self._computed("train", calls())
        for (worker, agents), (rows, kept, _) in zip(shares, learned, strict=True):
            population.put(agents, Population.from_tensors(from_arrays(rows), population.weights.device))
            worker.kept = set(kept)
        curves = [of_share for *_, of_share in learned]
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

    def _sent_agents(self, worker: Worker, population: Population, agents: slice, digests: Sequence[str]) -> SentAgents:
        sent = SentAgents.of(population, agents, digests, worker.kept)
        worker.kept = set(sent.digests)
        return sent

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
            _forget(pending)
        self._pending.clear()
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
            while not self._have_begun():
                if not self._pending and time.monotonic() - began > _FIRST_WORKER_SECONDS:
                    raise self._without_workers()
                report_progress("workers", 0, 1)
                if not self._pending:
                    time.sleep(LOOK_SECONDS)
            self._workers = dict(sorted(self._workers.items()))
            return list(self._workers.values())

    def _have_begun(self) -> bool:
        """Give the run to new workers; return whether there are some, and none is worth waiting for.

        One whose thread does something else, for example a whole run, begins once that is done: nothing waits for it as
        long as others have the run.
        """
        self._before_phase()
        addresses = self.addresses()
        self._workers = {address: worker for address, worker in self._workers.items() if address in addresses}
        for address in [address for address in self._pending if address not in addresses]:
            pending = self._pending.pop(address)
            self._leave_out(pending, pending.worker.lost(_STARTING))
        self._lost = {address: error for address, error in self._lost.items() if address in addresses}
        for address in addresses:
            if address not in self._workers and address not in self._pending:
                worker = self._client.make(ResidentAgents, self._run, address, *self._arguments)
                pending = self._pending[address] = _Pending(worker, was_lost=address in self._lost)
                pending.begun = self._client.start(self._begin(pending))
        self._join()
        return bool(self._workers) and self._all_late()

    def _all_late(self) -> bool:
        return all(pending.is_late for pending in self._pending.values())

    def _join(self) -> None:
        """Use those that have begun; wait a moment for those that are not late.

        Raises:
            InputError: a worker builds other data from the content that it was sent.
            Exception: the error of a worker.
        """
        end = time.monotonic() + LOOK_SECONDS
        while True:
            for address, pending in list(self._pending.items()):
                if not pending.begun.done():
                    continue
                try:
                    raise_failure(pending.begun)
                except WorkerLostError as error:
                    del self._pending[address]
                    self._leave_out(pending, error)
                else:
                    self._warn_of_shared_gpu(pending.worker)
                    self._workers[address] = self._pending.pop(address).worker
                    self._lost.pop(address, None)
            if not self._pending or (self._workers and self._all_late()) or time.monotonic() > end:
                break
            time.sleep(_STEP_SECONDS)
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

    async def _begin(self, pending: "_Pending") -> None:
        """Give the run to a worker: it opens the data, which it is sent if it does not find them."""
        worker = pending.worker
        await _made(worker)
        ask = partial(self._client.ask, worker, _STARTING)
        pending.since = time.monotonic()
        probe = self._probe and self._probe[1]
        opened = await ask("open", 0, probe)
        if opened is None:
            pending.since, pending.is_sent_data = time.monotonic(), True
            opened = await ask("open", 0, probe, self._content)
        if opened is None:
            raise InputError(f"worker {worker.address} builds other data than this process from what it was sent.")
        there, worker.gpu, worker.machine = opened
        here = arithmetic_of(self._device)
        if there != here:
            logger.warning(
                "Worker %s computes with %s, this process with %s: bits may differ from those of a run that one "
                "machine computes.",
                worker.address,
                there,
                here,
            )

    def _warn_of_shared_gpu(self, worker: Worker) -> None:
        if worker.gpu is not None and worker.gpu in [other.gpu for other in self._workers.values()]:
            logger.warning(
                "Worker %s computes on the same GPU as another one: each has only a part of its time and memory. Start "
                "one a GPU: on this machine by workers=auto, else each with CUDA_VISIBLE_DEVICES set to its own.",
                worker.address,
            )

    def _name_late(self) -> None:
        late = [each for each in self._pending.values() if each.is_late and not (each.is_named or each.was_lost)]
        if late:
            logger.warning(
                "No answer from %s, busy with something else or not to be reached from here: used from the first phase "
                "on that begins after that. %s",
                ", ".join(pending.worker.address for pending in late),
                "The phase goes on with the others." if self._workers else "The phase waits until one is free.",
            )
        for pending in late:
            pending.is_named = True

    def _leave_out(self, pending: "_Pending", error: WorkerLostError) -> None:
        _forget(pending)
        address, others = pending.worker.address, self._workers or self._pending
        if address not in self._lost:
            logger.warning("%s%s", error, " The phase goes on with the others." if others else "")
        self._lost[address] = error


def _computing(agents: slice) -> str:
    return f"it computed agents {agents.start} to {agents.stop - 1}"


@dataclass
class _Pending:
    """A worker that was asked to begin.

    Attributes:
        was_lost: it was lost before while it began, since this machine may not reach it: no phase waits for it.
        since: time of the request, or of the last step.
        is_sent_data: data are on their way to it.
        is_named: a warning has said that it does not answer.
        begun: done when it has begun.
    """

    worker: Worker
    was_lost: bool
    since: float = field(default_factory=time.monotonic)
    is_sent_data: bool = False
    is_named: bool = False
    begun: Future[None] = field(default_factory=Future)

    @property
    def is_late(self) -> bool:
        patience = _SENDING_SECONDS if self.is_sent_data else _PATIENCE_SECONDS
        return self.was_lost or time.monotonic() - self.since > patience


def _forget(pending: _Pending) -> None:
    pending.begun.cancel()
    pending.worker.actor = None


async def _made(worker: Worker) -> None:
    """Wait until the actor of a worker is there; its own function, since a failure keeps the frame of its caller."""
    actor = worker.actor
    assert actor is not None
    error = await actor.exception()  # type: ignore[no-untyped-call] # distributed has no annotation here
    if error is not None and not isinstance(error, KilledWorker):
        raise error
    if actor.status != "finished":
        raise worker.lost(_STARTING) from error
