"""Agents of a run, computed by the workers of a Dask scheduler."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from eigen_core.common.errors import SchedulerLostError, WorkerLostError
from eigen_core.common.progress import report_progress
from eigen_core.config import Config
from eigen_core.generation.agents import EpisodeResults, Episodes
from eigen_core.generation.state import resolve_device
from eigen_core.learning import LearningPlan
from eigen_core.networks.population import Population
from eigen_core.task.replay import Replay
from eigen_core.workers.beginning import WorkerStartup
from eigen_core.workers.calls import LOOK_SECONDS, Call, Calls
from eigen_core.workers.connection import connected, threads_of, worker_command
from eigen_core.workers.machines import OWN_MACHINE, Worker
from eigen_core.workers.messages import (
    Arrays,
    SentAgents,
    SentTransitions,
    SharedTransitions,
    agent_digests,
    from_arrays,
    to_arrays,
)

_SENDING = "it was sent transitions"
_FIRST_WORKER_SECONDS = 60.0


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
        self._scheduler = scheduler
        self._before_phase = before_phase
        self._workers: dict[str, Worker] = {}
        self._generation = 0
        self._client = connected(scheduler)
        self._calls = Calls(self._client, self.addresses)
        device = resolve_device(config.device)
        self._beginners = WorkerStartup(run, config, content, fingerprint, device, self._client, self._calls)

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
    def sent_bytes(self) -> int:
        """Bytes of all arrays that were sent to workers since the object was made."""
        return self._calls.sent_bytes

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of all arrays that crossed since the object was made."""
        return self._calls.sent_bytes + self._calls.received_bytes

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of the workers that computed last."""
        return tuple(self._workers)

    def play(self, population: Population, episodes: Episodes) -> EpisodeResults:
        """Play the episodes of all agents; see `Executor.play`."""
        digests = agent_digests(population)
        task_state, self._generation = to_arrays(episodes.task_state), episodes.generation
        # Its tensors are on the device of this process, which a worker need not have.
        stateless = replace(episodes, task_state={})
        shares = self._shares(slice(0, population.size))

        def calls() -> Iterator[Call]:
            for worker, agents in shares:
                sent = self._sent_agents(worker, population, agents, digests)
                arguments = (sent, stateless.rows(agents), task_state)
                yield self._calls.call(worker, _computing(agents), "play", *arguments)

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
        where = self._brought([worker for worker, _ in shares], replay)

        def calls() -> Iterator[Call]:
            for worker, agents in shares:
                sent = self._sent_agents(worker, population, agents, digests)
                arguments = (sent, plan.rows(agents), where[worker.address], state, self._generation)
                yield self._calls.call(worker, _computing(agents), "learn", *arguments)

        learned = self._computed("train", calls())
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
            self._calls.call(worker, _SENDING, "share_replay", lacking[worker.written], self._generation)
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

    def _computed(self, name: str, calls: Iterable[Call]) -> list[Any]:
        """Make the calls, all at once; return what they return, in order. `name`: of the progress that is reported."""
        with self._shutdown_on_error():
            made = list(calls)
            answers = self._calls.answers(made, lambda done: report_progress(name, done, len(made)))
            report_progress(name, len(made), len(made))
            return answers

    @contextmanager
    def _shutdown_on_error(self) -> Iterator[None]:
        """Let all workers begin anew if the block fails, whatever it fails by: some may still compute."""
        try:
            yield
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Let all workers free what they have of this run."""
        self._beginners.let_go()
        for worker in self._workers.values():
            # A traceback may keep the worker, and its actor there, for as long as a failure is remembered.
            worker.actor = None
        self._workers.clear()

    def addresses(self) -> list[str]:
        """Return the addresses of the workers that are there, in an order that stays.

        Raises:
            SchedulerLostError: the scheduler cannot be reached.
        """
        try:
            return sorted(threads_of(self._client))
        except OSError as error:
            raise SchedulerLostError(
                f"scheduler {self._scheduler} cannot be reached any more ({error}): start it and its workers again and "
                "resume the run."
            ) from error

    def _ready(self) -> list[Worker]:
        """Return the workers that have this run, ordered by address; those that are new are given it first.

        Raises:
            WorkerLostError: there are none.
        """
        with self._shutdown_on_error():
            began = time.monotonic()
            while not self._have_begun():
                if not self._beginners and time.monotonic() - began > _FIRST_WORKER_SECONDS:
                    raise self._without_workers()
                report_progress("workers", 0, 1)
                if not self._beginners:
                    time.sleep(LOOK_SECONDS)
            self._workers = dict(sorted(self._workers.items()))
            return list(self._workers.values())

    def _have_begun(self) -> bool:
        """Give the run to workers that are new; return whether it is worth waiting for none of them."""
        self._before_phase()
        addresses = self.addresses()
        self._workers = {address: worker for address, worker in self._workers.items() if address in addresses}
        self._beginners.ask([address for address in addresses if address not in self._workers], self._workers)
        self._beginners.join()
        return bool(self._workers) and self._beginners.timed_out

    def _without_workers(self) -> WorkerLostError:
        failure = self._beginners.failure
        if failure is not None:
            return WorkerLostError(
                f"{failure} No worker of scheduler {self._scheduler} could begin: let this machine reach their ports, "
                "which `--worker-port` of `dask worker` sets."
            )
        return WorkerLostError(
            f"scheduler {self._scheduler} has no workers: start some, for example with "
            f"`{worker_command(self._scheduler)}`."
        )


def _computing(agents: slice) -> str:
    return f"it computed agents {agents.start} to {agents.stop - 1}"
