"""Agents of a run, computed by the workers of a Dask scheduler."""

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import torch
from distributed import Client, KilledWorker
from torch import Tensor

from eigen_core.common.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.common.progress import report_progress
from eigen_core.config import Config
from eigen_core.generation.agents import EpisodeResults, Episodes
from eigen_core.generation.state import resolve_device
from eigen_core.learning import LearningPlan
from eigen_core.machine import SharedTensor, shared_probe, shares_memory
from eigen_core.machine.arithmetic import arithmetic_of
from eigen_core.networks.population import Population
from eigen_core.task.replay import Replay
from eigen_core.workers.connection import (
    LOOK_SECONDS,
    OWN_MACHINE,
    Call,
    Calls,
    Worker,
    connected,
    key_of,
    machine_of,
    threads_of,
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


logger = logging.getLogger(__name__)

_WHAT = "it began with the run"
_PATIENCE_SECONDS = 10.0
"""Time in which a worker that does nothing else begins; the first call imports all libraries."""
_SENDING_SECONDS = 60.0
"""Time that a phase waits for data on their way to a worker, which does nothing else."""
_STEP_SECONDS = 0.02


@dataclass
class _Pending:
    """A worker that was asked to begin.

    Attributes:
        worker: its actor is there once it has a thread to make it.
        since: when it was asked, or took the last step.
        steps: of its beginning; None: the actor is not there yet.
        calls: of the step that it takes.
        is_sent_data: this is what it does.
        was_lost: it was asked before, and lost while it began: no phase waits for it.
        is_named: a warning has said that it does not answer.
    """

    worker: Worker
    since: float
    steps: Generator[list[Call], list[Any], None] | None = None
    calls: list[Call] = field(default_factory=list)
    is_sent_data: bool = False
    was_lost: bool = False
    is_named: bool = False

    @property
    def is_late(self) -> bool:
        patience = _SENDING_SECONDS if self.is_sent_data else _PATIENCE_SECONDS
        return self.was_lost or time.monotonic() - self.since > patience


class WorkerStartup:
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
        self._values = config.model_dump(mode="json")
        self._device = device
        self._client = client
        self._calls = calls
        self._probe = shared_probe() if shares_memory(device.type) else None
        self._asked: dict[str, _Pending] = {}
        self._begun: dict[str, Worker] = {}
        self._lost: dict[str, WorkerLostError] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._asked)

    @property
    def timed_out(self) -> bool:
        """Whether no phase waits for those that there are."""
        return all(asked.is_late for asked in self._asked.values())

    @property
    def failure(self) -> WorkerLostError | None:
        """Reason why a worker that is there could not begin; None: there is none."""
        return next(iter(self._lost.values()), None)

    def ask(self, addresses: Collection[str], begun: dict[str, Worker]) -> None:
        """Ask the workers at `addresses` that were not asked yet; all others are left out.

        No phase waits for one that was lost before: it may be one that cannot be reached from here.

        Args:
            addresses: of workers that are there and have not begun.
            begun: workers that have, by address, to which `join` adds others.
        """
        self._begun = begun
        for address in [address for address in self._asked if address not in addresses]:
            self._leave_out(address, _lost(address))
        self._lost = {address: error for address, error in self._lost.items() if address in addresses}
        for address in addresses:
            if address not in self._asked:
                actor = self._client.submit(
                    ResidentAgents,
                    self._values,
                    self._fingerprint,
                    CODE,
                    workers=[address],
                    allow_other_workers=False,
                    actor=True,
                    pure=False,
                    key=key_of(self._run),
                )
                worker = Worker(address, actor)
                self._asked[address] = _Pending(worker, time.monotonic(), was_lost=address in self._lost)

    def join(self) -> None:
        """Add those that have begun to the others that have; wait a moment for those that are not late.

        Raises:
            InputError: a worker builds other data from what it was sent.
            Exception: what a worker has raised.
        """
        end = time.monotonic() + LOOK_SECONDS
        while True:
            for address, asked in list(self._asked.items()):
                with self._left_out_if_lost(address):
                    if self._has_begun(asked):
                        self._begun[address] = self._asked.pop(address).worker
                        self._lost.pop(address, None)
            if not self._asked or (self._begun and self.timed_out) or time.monotonic() > end:
                break
            time.sleep(_STEP_SECONDS)
        self._name_late()

    def let_go(self) -> None:
        """Let all free what they have of the run, and not begin if they have not."""
        for asked in self._asked.values():
            asked.worker.actor = None
        self._asked.clear()

    def _has_begun(self, asked: _Pending) -> bool:
        """Go on with the beginning of a worker as far as it goes without waiting; return whether it has begun."""
        if asked.steps is None:
            if not _is_made(asked.worker):
                return False
            asked.steps = self._steps(asked)
            asked.calls = next(asked.steps)
            asked.since = time.monotonic()
        while all(call.answer.done() for call in asked.calls):
            try:
                asked.calls = asked.steps.send(self._calls.answers(asked.calls))
            except StopIteration:
                return True
            asked.since = time.monotonic()
        return False

    def _steps(self, asked: _Pending) -> Generator[list[Call], list[Any], None]:
        """Begin with a worker whose actor is there: yield the calls of each step, and be sent what they return.

        It opens the run's data, which it is sent if it does not find them, its machine is found, and warnings say if
        it computes with something else, or on the GPU of another worker.
        """
        worker, here = asked.worker, arithmetic_of(self._device)
        [there] = yield [self._call(worker, "open")]
        if there is None:
            asked.is_sent_data = True
            [there] = yield [self._call(worker, "open", self._content)]
            asked.is_sent_data = False
        if there is None:
            raise InputError(f"worker {worker.address} builds other data than this process from what it was sent.")
        there, worker.gpu = there
        [worker.probe] = yield [self._call(worker, "shared")]
        yield from self._find_machine(worker)
        if there != here:
            logger.warning(
                "Worker %s computes with %s, this process with %s: bits may differ from those of a run that one "
                "machine computes.",
                worker.address,
                there,
                here,
            )
        if worker.gpu is not None and worker.gpu in [other.gpu for other in self._begun.values()]:
            logger.warning(
                "Worker %s computes on the same GPU as another one: each has only a part of its time and memory. Start "
                "one a GPU: on this machine by workers=auto, else each with CUDA_VISIBLE_DEVICES set to its own.",
                worker.address,
            )

    def _find_machine(self, worker: Worker) -> Generator[list[Call], list[Any], None]:
        """Ask which memory can be read until the worker's machine among those that have begun by then is known."""
        able: dict[tuple[str, str], bool] = {}
        unknown: list[tuple[Worker, SharedTensor]] = []

        def reads(reader: Worker, probe: SharedTensor) -> bool:
            if (reader.address, probe.name) not in able:
                unknown.append((reader, probe))
            return able.get((reader.address, probe.name), True)

        while True:
            worker.machine = machine_of(worker, self._begun.values(), self._probe and self._probe[1], reads)
            if not unknown:
                return
            answers = yield [self._call(reader, "reads", probe) for reader, probe in unknown]
            for (reader, probe), answer in zip(unknown, answers, strict=True):
                able[reader.address, probe.name] = answer
            unknown.clear()

    def _call(self, worker: Worker, method: str, *arguments: Any) -> Call:  # noqa: ANN401 - of any method
        return self._calls.call(worker, _WHAT, method, *arguments)

    def _name_late(self) -> None:
        late = [asked for asked in self._asked.values() if asked.is_late and not (asked.is_named or asked.was_lost)]
        if not late:
            return
        logger.warning(
            "No answer from %s, busy with something else or not to be reached from here: used from the first phase on "
            "that begins after that. %s",
            ", ".join(asked.worker.address for asked in late),
            "The phase goes on with the others." if self._begun else "The phase waits until one is free.",
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
        self._asked.pop(address).worker.actor = None
        # It may also be another one, which was asked what it can read.
        if error.address == address:
            if address not in self._lost:
                others = " The phase goes on with the others." if self._begun or self._asked else ""
                logger.warning("%s%s", error, others)
            self._lost[address] = error


def _lost(address: str) -> WorkerLostError:
    return WorkerLostError(f"worker {address} was lost while {_WHAT}.", address)


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
