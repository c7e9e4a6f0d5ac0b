"""The probe of a run: a child process computes a part of each phase with the run's settings, and measures it.

One group of agents (those that are computed together) plays its episodes, one takes some gradient steps, and the next
population is bred. The child has a timeout, exits above its memory limit, and Linux kills it first if memory runs out.
"""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from eigen_core.common.files import replacing
from eigen_core.common.process import code_digest, default_cache_root, stop_with_this_process
from eigen_core.common.progress import checked_by
from eigen_core.common.text import size
from eigen_core.config import Config
from eigen_core.generation import EvaluationResult, TrainingState, evolve, start_training
from eigen_core.generation.phases import next_episodes
from eigen_core.learning.fitness import Champion
from eigen_core.machine.allocation import is_out_of_memory
from eigen_core.machine.memory_usage import SystemMeter, own_resident_bytes, release_free_memory, tune_allocator
from eigen_core.machine.performance import computing_threads
from eigen_core.networks.population import Population, agent_groups
from eigen_core.planning.sizes import Memory
from eigen_core.task import open_data, task_class
from eigen_core.task.interface import TaskData

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_TIMEOUT_SECONDS = 300.0
Shape = tuple[int, int, int]
"""Numbers of days, columns (symbols) and tradable columns of a panel that is filled with random numbers."""

# Timed gradient steps: one to warm up, then one with and one without an actor update if every second step has one.
_STEPS = 3
# Computations that take less are repeated, since the first time includes set-up.
_SHORT_SECONDS = 2.0
# If one generation's days are too few for a batch, up to this many generations are played.
_MOST_GENERATIONS = 8
_SAMPLE_SECONDS = 0.02
_ABOVE_LIMIT, _OUT_OF_MEMORY, _SIGKILL = 77, 78, -9
_ENDING_SECONDS = 5
# Settings that do not change the memory of a phase.
_UNRELATED = ("preset", "generations", "checkpoint", "reporting", "memory", "workers", "scheduler", "seed")


@dataclass(frozen=True)
class ProbeResult:
    """Result of the probe of a run.

    Attributes:
        process: resident memory of the child before the data were opened (bytes).
        started: memory after phase `start`, less `process`.
        phases: peak of each phase: of `start`, less `process`; of `evaluate`, `train` and `evolve`, less the memory
            after `start` and the transitions that the probe stored.
        seconds: estimated time of `evaluate`, `train` and `evolve` in a whole generation.
        playing, learning: numbers of agents in the groups that played and learned.
        probe_seconds: time that the child measured for, without its imports and the opening of the data.
    """

    process: int
    started: Memory
    phases: Mapping[str, Memory]
    seconds: Mapping[str, float]
    playing: int
    learning: int
    probe_seconds: float

    @property
    def generation_seconds(self) -> float:
        """Estimated time of a generation without checkpoint and plots."""
        return sum(self.seconds.values())


_RESULT = TypeAdapter(ProbeResult)


@dataclass(frozen=True)
class ProbeFailure:
    """Failure of a probe in a phase: `why` (a clause) and `reached_bytes`, the limit that it exceeded (0: another)."""

    phase: str
    why: str
    out_of_memory: bool = False
    reached_bytes: int = 0


def probe(
    config: Config, shape: Shape | None = None, limit: int | None = None, timeout: float = _TIMEOUT_SECONDS
) -> ProbeResult | ProbeFailure:
    """Measure a run in a child process, on its data, or with a `shape` on a panel of random numbers.

    `limit` bounds the child's resident memory (bytes; None: no limit), `timeout` the whole probe (seconds).
    """
    request = {"config": config.model_dump(mode="json"), "shape": shape, "limit": limit}
    # The child imports the same modules as this process.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        # Ctrl-C reaches only this process, which stops the child.
        start_new_session=True,
    ) as process:
        release = stop_with_this_process(process.pid, _ENDING_SECONDS)
        try:
            said, errors = process.communicate(json.dumps(request).encode(), timeout)
        except subprocess.TimeoutExpired as error:
            phase = _last_document(error.stdout or b"").get("phase", "start")
            return ProbeFailure(phase, f"the probe took more than {timeout:.0f} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            release()
    document = _last_document(said)
    if "measured" in document:
        return _RESULT.validate_python(document["measured"])
    phase = document.get("phase", "start")
    if process.returncode == _ABOVE_LIMIT and limit is not None:
        why = f"the probe took more than the {size(limit)} of memory that this process leaves"
        return ProbeFailure(phase, why, reached_bytes=limit)
    if process.returncode in (_OUT_OF_MEMORY, _SIGKILL):
        return ProbeFailure(phase, "the probe ran out of memory", out_of_memory=True)
    *_, last = errors.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"]
    return ProbeFailure(phase, f"the probe failed ({last})")


def _last_document(said: bytes) -> dict[str, Any]:
    """Return the last complete line of JSON in a child's output."""
    document: dict[str, Any] = {}
    for line in said.splitlines():
        with suppress(ValueError):
            document = json.loads(line)
    return document


def cached_probe(config: Config, data: TaskData) -> ProbeResult | None:
    """Return this machine's cached result of a probe of these settings, on data of this size; None: there is none."""
    try:
        return _RESULT.validate_json(_cached(config, data).read_bytes())
    except (OSError, ValidationError):
        return None


def cache_probe(config: Config, data: TaskData, measured: ProbeResult) -> None:
    """Write the result of a probe to this machine's cache, if the cache is writable."""
    with suppress(OSError), replacing(_cached(config, data)) as file:
        file.write(_RESULT.dump_json(measured))


def _cached(config: Config, data: TaskData) -> Path:
    settings = config.model_dump(mode="json", exclude=set(_UNRELATED))
    here = [torch.__version__, torch.cuda.is_available(), torch.get_num_threads()]
    known = json.dumps([settings, data.size, *here], sort_keys=True)
    key = hashlib.sha256((known + code_digest(("eigen_core",))).encode()).hexdigest()
    return default_cache_root() / "probes" / f"{key}.json"


def measure(config: Config, data: TaskData, process: int, enter: Callable[[str], None] = lambda _: None) -> ProbeResult:
    """Compute and measure a part of each phase in this process; call `enter` with a phase's name before it begins.

    `process`: resident memory of this process before the data were opened (bytes).
    """
    began = time.perf_counter()
    # Learning starts after one group has played, actors choose its actions, and no other thread counts are tried.
    changed = {
        "threads": config.threads or torch.get_num_threads(),
        "replay": config.replay.model_copy(update={"minimum": 1}),
        "exploration": config.exploration.model_copy(update={"random_steps": 0}),
    }
    enter("start")
    state = start_training(config.model_copy(update=changed), data.content)
    meter = SystemMeter((), state.device)
    start = _peak(meter)
    release_free_memory()
    meter.reset_peaks()
    started = _peak(meter)
    piece = _PhaseProbe(state, meter, started)
    phases = {"start": start.excess_over(Memory(process))}
    seconds: dict[str, float] = {}
    for name, compute in (("evaluate", piece.evaluate), ("train", piece.train), ("evolve", piece.evolve)):
        enter(name)
        seconds[name], phases[name] = compute()
    return ProbeResult(
        process=process,
        started=started.excess_over(Memory(process)),
        phases=phases,
        seconds=seconds,
        playing=len(piece.players),
        learning=len(piece.learners),
        probe_seconds=time.perf_counter() - began,
    )


class _PhaseProbe:
    """A part of a generation; the methods of its phases return `seconds` and `phases` as `ProbeResult` has them."""

    def __init__(self, state: TrainingState, meter: SystemMeter, started: Memory) -> None:
        self._state, self._meter, self._started = state, meter, started
        agents = range(state.population.size)
        self.players = agents[: state.playing_size]
        learning = state.method.learning(state.config)
        self._groups = agent_groups(learning.stop, state.group_size, learning.start) if agents[learning] else []
        self.learners = agents[self._groups[0]] if self._groups else range(0)
        self._plan: Any = None
        self._plan_seconds = 0.0

    def evaluate(self) -> tuple[float, Memory]:
        """Let one group play its episodes; store its transitions once for every group, as if all had played."""
        state, agents, nothing = self._state, self._state.population.size, np.zeros(self._state.population.size)
        group = slice(0, self.players.stop)
        weights, optimisers = state.population.weights, state.population.state
        population = Population(weights[group], {name: held[group] for name, held in optimisers.items()})
        groups = -(-agents // len(self.players))

        def play() -> Mapping[str, Tensor]:
            return state.executor.play(population, next_episodes(state).rows(group)).transitions

        seconds, rows = self._timed(play)
        if seconds < _SHORT_SECONDS:
            seconds, rows = self._timed(play)
        peak = self._excess_peak()
        for generation in range(1, _MOST_GENERATIONS + 1):
            replay = state.replay
            for _ in range(groups):
                replay = replay.appended(rows)
            after = state.task.state_after(state.task_state, rows)
            result = EvaluationResult(generation, nothing, nothing, nothing, {}, None, after)
            champion = Champion(weights[0].clone(), 0.0, 0.0, 1, 0, state.task_state)
            state.commit(replay=replay, evaluated=result, champion=champion)
            if not self._groups or not state.config.learner.learns:
                break
            self._plan_seconds, self._plan = self._timed(lambda: state.learner.plan(state.replay, agents, 1))
            if self._plan is not None:
                break
            state.commit(generation=generation)
            rows = play()
        state.commit(generation=0, evaluated=EvaluationResult(1, nothing, nothing, nothing, {}, None, after))
        return seconds * agents / len(self.players), peak

    def train(self) -> tuple[float, Memory]:
        """Let one group of a copy of the population take some gradient steps."""
        plan = self._plan
        if plan is None:
            self._state.commit(learned=(1, None))
            return 0.0, Memory()
        moments = self._moments_of_steps(1)
        if plan.gradient_steps > 1 and moments[-1] - moments[0] < _SHORT_SECONDS:
            moments = self._moments_of_steps(_STEPS)
        took = np.diff(moments)
        step = float(took[1:].mean()) if len(took) > 1 else float(took[0])
        self._state.commit(learned=(1, {"gradient_steps": 1.0}))
        beside = max(float(took[0]) - step, 0.0)
        seconds = self._plan_seconds + len(self._groups) * (beside + step * plan.gradient_steps)
        return seconds, self._excess_peak()

    def _moments_of_steps(self, steps: int) -> list[float]:
        """Return the clock's times (seconds) before learning and after each of at most `steps` gradient steps."""
        state, moments = self._state, [self._now()]

        def stop() -> None:
            moments.append(self._now())
            if len(moments) > steps:
                raise _ProbeCompleteError

        with suppress(_ProbeCompleteError), checked_by(stop):
            population = state.population.clone()
            state.executor.learn(population, self._groups[0], self._plan, state.replay, state.learning_task_state)
        return moments

    def evolve(self) -> tuple[float, Memory]:
        seconds, _ = self._timed(lambda: evolve(self._state))
        return seconds, self._excess_peak()

    def _timed(self, compute: Callable[[], _Result]) -> tuple[float, _Result]:
        began = self._now()
        result = compute()
        return self._now() - began, result

    def _now(self) -> float:
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)
        return time.perf_counter()

    def _excess_peak(self) -> Memory:
        """Return the peak of memory since the last call, less `started` and the stored transitions."""
        state = self._state
        stored = state.replay.size * int(state.replay.bytes_per_transition) if state.device.type == "cpu" else 0
        peak = _peak(self._meter).excess_over(self._started)
        self._meter.reset_peaks()
        return peak.excess_over(Memory(host=stored))


class _ProbeCompleteError(Exception): ...


def _peak(meter: SystemMeter) -> Memory:
    host, device = meter.peaks()
    return Memory(host, 0 if device is None else device.reserved)


def _end_above(limit: int) -> None:
    """Exit once the resident memory of this process exceeds `limit` (bytes)."""
    while own_resident_bytes() <= limit:
        time.sleep(_SAMPLE_SECONDS)
    os._exit(_ABOVE_LIMIT)


def _main() -> None:
    # Output of libraries must not mix with the messages to the parent.
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    with suppress(OSError):
        # Linux kills this process first if memory runs out.
        Path("/proc/self/oom_score_adj").write_text("1000")
    if request["limit"] is not None:
        threading.Thread(target=_end_above, args=(request["limit"],), daemon=True).start()
    tune_allocator()

    def enter(phase: str) -> None:
        print(json.dumps({"phase": phase}), file=said)

    try:
        config = Config(**request["config"])
        process = own_resident_bytes()
        enter("start")
        shape = request["shape"]
        data = open_data(config) if shape is None else task_class(config).data_of_shape(config, *shape)
        with computing_threads(config.threads):
            measured = measure(config, data, process, enter)
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        os._exit(_OUT_OF_MEMORY)
    print(json.dumps({"measured": asdict(measured)}), file=said)


if __name__ == "__main__":
    _main()
