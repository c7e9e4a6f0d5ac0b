"""Does training notice that its store is away? A training whose store refuses everything for a minute."""

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.resident import in_own_process
from benchmarks.results import Section
from benchmarks.stores_elsewhere import PHASES, emulator, middle_and_longest, reach_store_at, run_generation
from eigen_core.checkpoint import RunContents, open_session
from eigen_core.checkpoint.contents import kept_generations
from eigen_core.config.loading import config_from_values
from eigen_core.generation import start_training
from eigen_core.market import build_panel
from eigen_core.store import open_store
from eigen_core.training.runs import Run

_AWAY_SECONDS = 60.0
_AWAY_FROM = 20
_GENERATIONS = 220
_WARM_UP = 5
_KEEP_LAST, _KEEP_EVERY, _QUEUE = 3, 5, 64
_RUNS = {"without": False, "away": True, "without again": False}

_CONFIG: dict[str, Any] = {
    "preset": "quickstart",
    "device": "cpu",
    "generations": _GENERATIONS,
    "population": {"size": 8},
    "learner": {"gradient_steps": 8},
    "evaluation": {"slices": 3},
}


@dataclass(frozen=True)
class Course:
    """How one run went.

    Attributes:
        generations: time of each phase of each generation (seconds).
        away: numbers of the generations that began or ended while the store was away.
        failed: attempts to upload that failed.
        pending: most generations that waited for upload after one was committed.
        finish_seconds: for how long the end waited for the store.
        weights: SHA-256 of the last population.
    """

    generations: Sequence[Mapping[str, float]]
    away: range
    failed: int
    pending: int
    finish_seconds: float
    weights: str

    def seconds(self, phase: str, numbers: Sequence[int]) -> list[float]:
        """Time of a phase in some generations (seconds)."""
        return [self.generations[number - 1][phase] for number in numbers]


@dataclass(frozen=True)
class Ending:
    """What is in the store once a run has ended.

    Attributes:
        generations: those that are there.
        missing: those that should be there and are not.
        damages: what is wrong with those that are.
    """

    generations: Sequence[int]
    missing: Sequence[int]
    damages: Sequence[str]


def run() -> Section:
    """Train the same run three times, the second time with the store away for a minute."""
    from fault_proxy import FaultProxy

    courses: dict[str, Course] = {}
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as folder, emulator(Path(folder)) as server:
        proxy = FaultProxy(server.url)
        store = f"gs://{server.make_bucket()}/runs"
        try:
            for name, is_away in _RUNS.items():
                run_name = name.replace(" ", "-")
                courses[name] = in_own_process(train_beside, _values(store, folder), run_name, proxy.url, is_away)
                proxy.clear()
            ending = in_own_process(look, _values(store, folder), "away", server.url)
        finally:
            proxy.stop()
    return _section(courses, ending)


def _values(store: str, folder: str) -> dict[str, Any]:
    checkpoint = {
        "store": store,
        "local": f"{folder}/local",
        "keep_last": _KEEP_LAST,
        "keep_every": _KEEP_EVERY,
        "queue_generations": _QUEUE,
    }
    return {**_CONFIG, "checkpoint": checkpoint}


def train_beside(values: Mapping[str, Any], name: str, proxy_url: str, is_away: bool) -> Course:
    """Train a run whose store is reached through a proxy that refuses everything for a while, if it `is_away`."""
    from fault_proxy import Fault, set_faults

    # What the uploads have to say about it is counted, not shown.
    logging.getLogger("eigen_core").setLevel(logging.CRITICAL)
    reach_store_at(proxy_url)
    config = config_from_values(values)
    state = start_training(config, build_panel(config)[0])
    Run(config.checkpoint, name).begin(config)
    generations: list[dict[str, float]] = []
    last_away, pending = 0, 0
    with open_session(config.checkpoint, name) as session:
        back = 0.0
        for generation in range(1, _GENERATIONS + 1):
            if generation == _AWAY_FROM:
                back = time.monotonic() + _AWAY_SECONDS
                if is_away:
                    set_faults(proxy_url, Fault("status", times=None, for_seconds=_AWAY_SECONDS))
            if generation >= _AWAY_FROM and time.monotonic() < back:
                last_away = generation
            generations.append(run_generation(state, session))
            uploads = session.uploads()
            assert uploads is not None
            pending = max(pending, uploads.pending)
        started = time.monotonic()
        session.finish()
        waited = time.monotonic() - started
        uploads = session.uploads()
        assert uploads is not None
    away = range(_AWAY_FROM, last_away + 1)
    return Course(generations, away, uploads.failed, pending, waited, state.history[-1].weights_sha256)


def look(values: Mapping[str, Any], name: str, server_url: str) -> Ending:
    """Verify every byte of a run in the store, and see whether all is there that retention keeps."""
    reach_store_at(server_url)
    config = config_from_values(values)
    contents = RunContents(open_store(config.checkpoint.store), name)
    damages = [str(damage) for damage in contents.verify(deep=True)]
    there = sorted({manifest.generation for manifest in contents.manifests().manifests})
    newest = contents.newest_manifest()
    assert newest is not None
    everything = range(1, _GENERATIONS + 1)
    kept = kept_generations(everything, everything[-_KEEP_LAST:], _KEEP_EVERY, newest.champion_generation)
    return Ending(there, sorted(kept - set(there)), damages)


def _section(courses: Mapping[str, Course], ending: Ending) -> Section:
    away, without = courses["away"], [course for name, course in courses.items() if name != "away"]
    counted, meanwhile = range(1 + _WARM_UP, _GENERATIONS + 1), away.away
    rows = [
        [
            phase,
            *(middle_and_longest(course.seconds(phase, counted)) for course in courses.values()),
            middle_and_longest(away.seconds(phase, meanwhile)),
            middle_and_longest([time for course in without for time in course.seconds(phase, meanwhile)]),
            f"{_ratio(away, without, phase, meanwhile):.2f}",
            f"{_ratio(without[1], without[:1], phase, meanwhile):.2f}",
        ]
        for phase in PHASES
    ]
    lost = f"missing {ending.missing}, damaged {ending.damages}" if ending.missing or ending.damages else "nothing"
    same = len({course.weights for course in courses.values()}) == 1
    return Section(
        title="The store is away for a minute",
        method=f"{_GENERATIONS} small generations (preset quickstart with 8 agents, 3 episodes, 8 gradient steps), "
        "kept on an emulator of Google Cloud Storage behind a proxy that answers everything with 503 for "
        f"{_AWAY_SECONDS:.0f} s from generation {_AWAY_FROM} on, between two runs without that; each in a process of "
        "its own. Meanwhile: the generations "
        f"{meanwhile.start} to {meanwhile.stop - 1} alone, while the store is away. Times as long: the middle of the "
        "ratios of each of them to the mean of the same one in the runs without, and of the second of these to the "
        "first, which is noise.",
        columns=(
            "ms (middle / longest)",
            *courses,
            "meanwhile: away",
            "meanwhile: without",
            "times as long",
            "noise",
        ),
        rows=rows,
        remarks=(
            f"Lost: {lost}. In the store at the end, every byte verified: {len(ending.generations)} generations (the "
            f"last {_KEEP_LAST}, every {_KEEP_EVERY}th, the champion's). Weights at the end: "
            f"{'the same in all runs' if same else 'DIFFERENT'}.",
            f"Attempts to upload that failed: {away.failed} (without: "
            f"{', '.join(str(course.failed) for course in without)}). Generations that waited for upload: up to "
            f"{away.pending} (without: {', '.join(str(course.pending) for course in without)}; "
            f"`checkpoint.queue_generations` is {_QUEUE}). The run's end waited for the store for "
            f"{away.finish_seconds:.1f} s (without: {', '.join(f'{c.finish_seconds:.1f}' for c in without)} s).",
        ),
    )


def _ratio(course: Course, others: Sequence[Course], phase: str, numbers: Sequence[int]) -> float:
    """How many times as long a phase took as the mean of the same one in other runs: the middle over generations."""
    times = [other.seconds(phase, numbers) for other in others]
    means = [sum(same) / len(same) for same in zip(*times, strict=True)]
    ratios = [mine / mean for mine, mean in zip(course.seconds(phase, numbers), means, strict=True)]
    return float(median(ratios))
