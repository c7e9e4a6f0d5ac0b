"""What runs in a worker: a Dask actor that keeps a run's task, learner and replay buffer, and computes agents."""

import gc
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import torch
from distributed import get_worker

from eigen_core.checkpoint.locks import this_process
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.common.errors import InputError, WorkerLostError
from eigen_core.common.process import code_digest
from eigen_core.common.progress import checked_by
from eigen_core.common.records import Arithmetic
from eigen_core.config.loading import config_from_values
from eigen_core.generation.executor import EpisodeResults, Episodes, LocalExecutor
from eigen_core.generation.state import resolve_device
from eigen_core.learning.interface import LearningPlan
from eigen_core.machine.allocation import SharedTensor, shared_memory_check
from eigen_core.machine.limits import device_limit, host_limits
from eigen_core.machine.memory_guard import MemoryGuard
from eigen_core.machine.memory_usage import tune_allocator
from eigen_core.machine.reproducibility import arithmetic_of
from eigen_core.networks.population import Population
from eigen_core.task import open_data
from eigen_core.task.replay import Replay
from eigen_core.workers.connection import (
    OWN_MACHINE,
    Arrays,
    RemoteError,
    SentTransitions,
    SharedTransitions,
    to_arrays,
    to_tensors,
)

CODE = code_digest(("eigen_core",))
"""Hash of the code that this process runs; computed when this module is loaded: files may be replaced later."""

_PHASES = {"play": "evaluate", "share_replay": "train", "learn": "train"}
_CPU = torch.device("cpu")


class WorkerAgents:
    """Computes agents of one run in a worker, with one thread; a Dask actor (an object that the worker keeps).

    `values` are the run's settings, `fingerprint` is the hash of its data, `code` is the `CODE` of the leading process:
    the one that trains the run and calls these methods.
    """

    def __init__(self, values: Mapping[str, Any], fingerprint: str, code: str) -> None:
        # All that may fail is left to `open`: Dask would change an error that is raised here.
        self._values = values
        self._fingerprint = fingerprint
        self._code = code
        self._worker = get_worker()
        self._key = self._worker.get_current_task()

    def answer(self, method: str, generation: int, *arguments: Any) -> Any:  # noqa: ANN401 - of any method
        """Call another method of this object by name; return its result, or its error as a `RemoteError`.

        Phases run under this worker's memory guard, and end once the leading process releases the worker.
        """
        try:
            if method not in _PHASES:
                return getattr(self, method)(*arguments)
            with self._guard, self._guard.phase(_PHASES[method], generation), checked_by(self._require_held):
                return getattr(self, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - the leading process raises it
            return RemoteError.of(error)

    def _require_held(self) -> None:
        """Raise `WorkerLostError` if the leading process has released this worker, whose thread other runs may need."""
        if self._key not in self._worker.state.actors:
            raise WorkerLostError(f"worker {self._worker.address} was released by the process that leads the run.")

    def open(self, probe: SharedTensor | None, content: object = None) -> tuple[Arithmetic, str] | None:
        """Build the task from `content`, the run's data, or if it is None from data files of this machine.

        Returns None if the data are missing or not the run's; else the hardware and libraries of this process, and a
        name that processes share if they can read each other's memory: `OWN_MACHINE` if `probe`, which is memory of the
        leading process, can be read here.

        Raises:
            InputError: the code of this process differs from that of the leading process, and may compute other bits.
        """
        if self._code != CODE:
            raise InputError(
                f"worker {self._worker.address} runs another version of Eigen's code than the process that trains: "
                "install the same version there, and restart the worker."
            )
        torch.set_num_threads(1)
        tune_allocator()
        # The guard's reports then skip objects of the libraries.
        gc.collect()
        gc.freeze()
        self._config = config_from_values(self._values)
        self._device = resolve_device(self._config.device)
        self._mapped: Mapping[str, SharedTensor] = {}
        self._shares = shared_memory_check() is not None
        memory = self._config.memory
        self._guard = MemoryGuard(host_limits(memory), memory, device_limit=device_limit(self._device))
        if content is None:
            try:
                content = open_data(self._config).content
            except InputError:
                # The files are elsewhere.
                return None
        computer = LocalExecutor(self._config, content, self._device)
        if computer.task.fingerprint != self._fingerprint:
            return None
        self._computer = computer
        self._host_replay = self._empty_replay(_CPU)
        self._gpu_replay = None if self._device.type == "cpu" else self._empty_replay(self._device)
        own = probe is not None and probe.opened() is not None
        return arithmetic_of(self._device), OWN_MACHINE if own else self._machine()

    def _empty_replay(self, device: torch.device) -> Replay:
        return Replay(self._config.replay.capacity, self._computer.task.columns, device)

    def _machine(self) -> str:
        """Return a name that two processes share only if they can open each other's descriptors in /proc."""
        here = this_process()
        known = self._shares and here.boot and here.namespace
        return f"{here.boot} {here.namespace} {os.getuid()}" if known else uuid4().hex

    def play(self, agents: Arrays, episodes: Episodes, task_state: Arrays) -> tuple[EpisodeResults, Arrays]:
        """Play `episodes` with `task_state`, which they lack; return results without transitions, and these."""
        population = Population.from_tensors(to_tensors(agents), self._device)
        played = self._computer.play(population, replace(episodes, task_state=to_tensors(task_state, self._device)))
        # A tensor inside another object would be copied several times on its way.
        return replace(played, training=replace(played.training, transitions=None)), to_arrays(played.transitions)

    def share_replay(self, transitions: SentTransitions) -> SharedTransitions | None:
        """Append transitions to this worker's replay; return its shared memory, None if other workers cannot map it."""
        if transitions.before is None:
            self._host_replay = self._empty_replay(_CPU)
            self._mapped = {}
            if self._shares:
                try:
                    self._host_replay.share()
                except OSError as error:
                    raise RuntimeError(f"The replay cannot be shared with workers of this machine: {error}.") from error
            self._host_replay.written = transitions.written - len(next(iter(transitions.rows.values())))
        elif self._host_replay.written != transitions.before:
            held = self._host_replay.written
            raise RuntimeError(
                f"This worker's replay has {held:,} transitions instead of {transitions.before:,}: resume the run."
            )
        self._host_replay.append(to_tensors(transitions.rows))
        return SharedTransitions(self._host_replay.share(), self._host_replay.written) if self._shares else None

    def learn(
        self, agents: Arrays, plan: LearningPlan, where: SharedTransitions | None, task_state: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Let agents learn from the replay at `where` (None: this worker's); return them and the learner's curves."""
        population = Population.from_tensors(to_tensors(agents), self._device)
        replay = self._host_replay if where is None else self._mapped_replay(where)
        if self._gpu_replay is not None:
            # A GPU learns from a copy, to which new transitions are added.
            self._gpu_replay.follow(replay)
            replay = self._gpu_replay
        everyone, state = slice(0, population.size), to_tensors(task_state, self._device)
        curves = self._computer.learn(population, everyone, plan, replay, state)
        return to_arrays(population.tensors()), to_arrays(curves)

    def _mapped_replay(self, where: SharedTransitions) -> Replay:
        if self._mapped != where.columns:
            columns = {name: memory.opened() for name, memory in where.columns.items()}
            there = {name: column for name, column in columns.items() if column is not None}
            if len(there) < len(columns):
                raise WorkerLostError("the worker that shares the replay with others was lost, or cannot be read.")
            self._host_replay = Replay.from_ring(Ring(there, 0, 0), self._computer.task.columns, _CPU)
            self._mapped = where.columns
        self._host_replay.written = where.written
        return self._host_replay
