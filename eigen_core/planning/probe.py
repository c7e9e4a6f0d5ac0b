"""The probe of a run: a child process computes a piece of each phase with the settings of the run, and is measured.

One group of agents plays its episodes, one group takes some gradient steps, and the next population is bred. The child
has a timeout, ends itself above its limit, and is the first to be killed where memory runs out.
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
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from eigen_core.common.files import replacing
from eigen_core.common.progress import checked_by
from eigen_core.common.runtime import code_digest, default_cache_root, stop_with_this_process
from eigen_core.common.text import size
from eigen_core.config import Config
from eigen_core.generation import EvaluationResult, TrainingState, evolve, start_training
from eigen_core.generation.phases import coming_episodes
from eigen_core.learning import Champion
from eigen_core.machine import peak_resident_bytes, release_free_memory, reset_peak, tune_allocator
from eigen_core.machine.allocation import is_exhaustion
from eigen_core.machine.threads import computing_threads
from eigen_core.machine.usage import own_resident_bytes
from eigen_core.networks.population import Population, agent_groups
from eigen_core.task import TaskData, open_data, task_class

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 300.0
Shape = tuple[int, int, int]
"""Days, columns and tradable columns of a panel that is not there."""

# One to warm up, and as many after it with an actor that moves in each second step as without.
_STEPS = 3
# Shorter pieces are computed twice: the first time includes set-up.
_SHORT_SECONDS = 2.0
# If one generation's days are too few for a batch, up to this many are played.
_MOST_GENERATIONS = 8
_LOOK_SECONDS = 0.02
_ABOVE_LIMIT, _OUT_OF_MEMORY, _SIGKILL = 77, 78, -9
_ENDING_SECONDS = 5
# They change files or the length of a run, not the memory of a phase.
_UNRELATED = ("preset", "generations", "checkpoint", "reporting", "memory", "workers", "scheduler", "seed")


class Peak(NamedTuple):
    """Memory on the host and on a GPU (bytes)."""

    host: int
    device: int = 0

    def above(self, held: "Peak") -> "Peak":
        """Return what is more than `held`, at least 0."""
        return Peak(max(self.host - held.host, 0), max(self.device - held.device, 0))

    def times(self, share: float) -> "Peak":
        return Peak(int(self.host * share), int(self.device * share))


@dataclass(frozen=True)
class ProbeResult:
    """Result of the probe of a run.

    Attributes:
        process: resident memory before the data were opened (bytes).
        started: memory once the run has started, above `process`.
        phases: peaks in `start`, above `process`, and in `evaluate`, `train` and `evolve`, above the memory before and
            the transitions that are stored.
        seconds: estimated time of a whole generation in `evaluate`, `train` and `evolve`.
        playing, learning: agents that played and learned together.
    """

    process: int
    started: Peak
    phases: Mapping[str, Peak]
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
    """Failure of a probe in a phase; `why` is a clause without a full stop.

    `reached_bytes` is the resident memory at which the probe stopped itself; 0: it did not.
    """

    phase: str
    why: str
    out_of_memory: bool = False
    reached_bytes: int = 0


def probe(
    config: Config, shape: Shape | None = None, limit: int | None = None, timeout: float = TIMEOUT_SECONDS
) -> ProbeResult | ProbeFailure:
    """Measure a run in a child process; with a `shape` on a panel of random numbers, otherwise on its data.

    `limit` bounds the child's resident memory (bytes), `timeout` the whole probe (seconds).
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
        # Ctrl-C is for this process, which ends the child.
        start_new_session=True,
    ) as process:
        release = stop_with_this_process(process.pid, _ENDING_SECONDS)
        try:
            said, errors = process.communicate(json.dumps(request).encode(), timeout)
        except subprocess.TimeoutExpired as error:
            phase = _last_document(error.stdout or b"").get("phase", "start")
            return ProbeFailure(phase, f"a piece of it took more than {timeout:.0f} s")
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
        why = f"a piece of it took more than the {size(limit)} that are left beside this process"
        return ProbeFailure(phase, why, reached_bytes=limit)
    if process.returncode in (_OUT_OF_MEMORY, _SIGKILL):
        return ProbeFailure(phase, "a piece of it took more memory than there is", out_of_memory=True)
    *_, last = errors.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"]
    return ProbeFailure(phase, f"a piece of it failed ({last})")


def _last_document(said: bytes) -> dict[str, Any]:
    """Return the last complete line of a child's output."""
    document: dict[str, Any] = {}
    for line in said.splitlines():
        with suppress(ValueError):
            document = json.loads(line)
    return document


def remembered(config: Config, data: TaskData) -> ProbeResult | None:
    """Return the result of an earlier probe of these settings here, on data of this size; None: there was none."""
    try:
        return _RESULT.validate_json(_cached(config, data).read_bytes())
    except (OSError, ValidationError):
        return None


def remember(config: Config, data: TaskData, measured: ProbeResult) -> None:
    """Keep the result of a probe in the cache of this machine, if that can be written to."""
    with suppress(OSError), replacing(_cached(config, data)) as file:
        file.write(_RESULT.dump_json(measured))


def _cached(config: Config, data: TaskData) -> Path:
    settings = config.model_dump(mode="json", exclude=set(_UNRELATED))
    here = [torch.__version__, torch.cuda.is_available(), torch.get_num_threads()]
    known = json.dumps([settings, data.size, *here], sort_keys=True)
    key = hashlib.sha256((known + code_digest(("eigen_core",))).encode()).hexdigest()
    return default_cache_root() / "probes" / f"{key}.json"


def measure(config: Config, data: TaskData, process: int, enter: Callable[[str], None] = lambda _: None) -> ProbeResult:
    """Compute a piece of each phase in this process, and measure it; `enter` is called with each phase before it.

    `process`: resident memory before the data were opened (bytes).
    """
    began = time.perf_counter()
    # One piece is enough to learn from, and is played by the actors. With a number of threads none are tried meanwhile.
    changed = {
        "threads": config.threads or torch.get_num_threads(),
        "replay": config.replay.model_copy(update={"minimum": 1}),
        "exploration": config.exploration.model_copy(update={"random_steps": 0}),
    }
    enter("start")
    state = start_training(config.model_copy(update=changed), data.content)
    start = _peak(state.device)
    release_free_memory()
    _reset_peaks(state.device)
    started = _peak(state.device)
    piece = _Piece(state, started)
    phases = {"start": start.above(Peak(process))}
    seconds: dict[str, float] = {}
    for name, compute in (("evaluate", piece.evaluate), ("train", piece.train), ("evolve", piece.evolve)):
        enter(name)
        seconds[name], phases[name] = compute()
    return ProbeResult(
        process=process,
        started=started.above(Peak(process)),
        phases=phases,
        seconds=seconds,
        playing=len(piece.players),
        learning=len(piece.learners),
        probe_seconds=time.perf_counter() - began,
    )


class _Piece:
    """A piece of a generation; each phase returns its estimated time in a whole one, and its peak above `started`."""

    def __init__(self, state: TrainingState, started: Peak) -> None:
        self._state, self._started = state, started
        agents = range(state.population.size)
        self.players = agents[: state.playing_size]
        learning = state.method.learning(state.config)
        self._groups = agent_groups(learning.stop, state.group_size, learning.start) if agents[learning] else []
        self.learners = agents[self._groups[0]] if self._groups else range(0)
        self._plan: Any = None
        self._plan_seconds = 0.0

    def evaluate(self) -> tuple[float, Peak]:
        """Let a group play its episodes; store its transitions as often as there are groups."""
        state = self._state
        group, size = slice(0, self.players.stop), state.population.size
        population = Population(
            state.population.weights[group], {name: held[group] for name, held in state.population.state.items()}
        )
        state.task.state = state.task_state
        peak: Peak | None = None
        for _ in range(_MOST_GENERATIONS):
            episodes = coming_episodes(state).rows(group)
            for _ in range(2):
                began = self._now()
                rows = state.executor.play(population, episodes).training.transitions
                took = self._now() - began
                if peak is not None or took >= _SHORT_SECONDS:
                    break
            assert rows is not None
            peak = peak or self._above_held()
            replay = state.replay
            for _ in range(-(-size // len(self.players))):
                replay = replay.appended(rows)
            after = state.task.state_after(rows)
            nothing = np.zeros(size)
            result = EvaluationResult(state.generation + 1, nothing, nothing, nothing, {}, None, after)
            champion = Champion(state.population.weights[0].clone(), 0.0, 0.0, 1, 0, state.task_state)
            state.commit(replay=replay, evaluated=result, champion=champion)
            began = self._now()
            self._plan = state.learner.plan(state.replay, size, 1) if self._groups else None
            self._plan_seconds = self._now() - began
            if self._plan is not None or not self._groups or not state.config.learner.learns:
                break
            state.commit(generation=state.generation + 1)
        state.commit(generation=0, evaluated=EvaluationResult(1, nothing, nothing, nothing, {}, None, after))
        assert peak is not None
        return took * size / len(self.players), peak

    def train(self) -> tuple[float, Peak]:
        """Let a group take some gradient steps on a copy of the population."""
        plan = self._plan
        if plan is None:
            self._state.commit(learned=(1, None))
            return 0.0, Peak(0)
        moments = self._moments_of_steps(1)
        if plan.gradient_steps > 1 and moments[-1] - moments[0] < _SHORT_SECONDS:
            moments = self._moments_of_steps(_STEPS)
        took = np.diff(moments)
        step = float(took[1:].mean()) if len(took) > 1 else float(took[0])
        self._state.commit(learned=(1, {"gradient_steps": 1.0}))
        beside = max(float(took[0]) - step, 0.0)
        seconds = self._plan_seconds + len(self._groups) * (beside + step * plan.gradient_steps)
        return seconds, self._above_held()

    def _moments_of_steps(self, steps: int) -> list[float]:
        """Return the time when learning began, and after each of at most `steps` steps."""
        state, moments = self._state, [self._now()]

        def stop() -> None:
            moments.append(self._now())
            if len(moments) > steps:
                raise _ProbeCompleteError

        with suppress(_ProbeCompleteError), checked_by(stop):
            population = state.population.clone()
            state.executor.learn(population, self._groups[:1], self._plan, state.replay, state.learning_task_state)
        return moments

    def evolve(self) -> tuple[float, Peak]:
        state = self._state
        began = self._now()
        evolve(state)
        return self._now() - began, self._above_held()

    def _now(self) -> float:
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)
        return time.perf_counter()

    def _above_held(self) -> Peak:
        """Return the peak since the last call above `started` and the transitions that are stored."""
        state = self._state
        stored = state.replay.size * int(state.replay.bytes_per_transition) if state.device.type == "cpu" else 0
        peak = _peak(state.device).above(self._started)
        _reset_peaks(state.device)
        return Peak(max(peak.host - stored, 0), peak.device)


class _ProbeCompleteError(Exception): ...


def _peak(device: torch.device) -> Peak:
    on_device = int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0
    return Peak(peak_resident_bytes(), on_device)


def _reset_peaks(device: torch.device) -> None:
    reset_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _end_above(limit: int) -> None:
    """End this process once its resident memory is above a limit."""
    while own_resident_bytes() <= limit:
        time.sleep(_LOOK_SECONDS)
    os._exit(_ABOVE_LIMIT)


def _main() -> None:
    # Output of libraries must not mix with the messages to the parent.
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    with suppress(OSError):
        # The first to be ended where the system runs out of memory.
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
        if not is_exhaustion(error):
            raise
        os._exit(_OUT_OF_MEMORY)
    print(json.dumps({"measured": asdict(measured)}), file=said)


if __name__ == "__main__":
    _main()
