"""A small run to attack: three generations that were trained without Prefect, and how the fourth one must end."""

import functools
import json
import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.synthetic import leaking_market
from eigen_core.checkpoint.integrity import holdout_name
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.generation import (
    TrainingState,
    evaluate,
    evolve,
    restore,
    snapshot,
    snapshot_form,
    start_training,
    train,
)
from eigen_core.market import Panel
from eigen_core.runs.handle import Run, status_of

RUN = "run"
GENERATIONS = 3
_PATIENCE_SECONDS = 120
_CONFIG = {
    "preset": "ddpg",
    "seed": 3,
    "device": "cpu",
    "generations": GENERATIONS + 1,
    "market": {"window": 8, "validation": 30, "holdout": 24},
    "trading": {"trading_bars": 12, "settlement_bars": 5, "holding_bars": 5},
    "network": {"scales": [1, 3, 8], "channels": 4, "embedding": 4, "queries": 2, "head_width": 4},
    "population": {"size": 4},
    "replay": {"capacity": 350, "minimum": 100},
    "learner": {"gradient_steps": 2, "batch_size": 5},
    "evaluation": {"slices": 2, "lowest": 1, "validation_slices": 2, "validation_lowest": 1},
}


@dataclass(frozen=True)
class SmallRun:
    """What all cases begin with.

    Attributes:
        store: folder with the run; not to be changed.
        end: what a state is after the fourth generation.
    """

    store: Path
    panel: Panel
    end: str


def _config(store: Path) -> Config:
    return Config.model_validate({**_CONFIG, "checkpoint": {"store": str(store), "keep_last": 100}})


def _advance(state: TrainingState) -> None:
    evaluate(state)
    train(state)
    evolve(state)


def _end(state: TrainingState) -> str:
    tensors = tensors_sha256({**state.population.tensors(), **state.replay.tensors()})
    return json.dumps(
        [tensors, state.noise_scale, dict(state.method_state.numbers), state.history[-1].model_dump(mode="json")]
    )


@functools.cache
def small_run() -> SmallRun:
    """Train the run once; its folder lasts as long as the process."""
    store = Path(tempfile.mkdtemp(prefix="eigen-fuzz-run-"))
    config = _config(store)
    panel = leaking_market(config, 160, 4, 1)
    state = start_training(config, panel)
    run = RunDirectory.create(store, RUN, config.model_dump(mode="json"))
    for generation in range(1, GENERATIONS + 1):
        _advance(state)
        run.save(snapshot(state))
        run.contents.write_json(holdout_name(generation), {"generation": generation})
    run.contents.store.put(f"{RUN}/plots/notes.txt", b"a picture")
    _advance(state)
    return SmallRun(store, panel, _end(state))


def resumed(folder: Path) -> tuple[str, str | None]:
    """Go on with a copy of the run in `folder` as a flow does; return what became of it, and what is wrong with that.

    Right is a refusal in one sentence, or the very end of the undisturbed run; nothing else, and soon.
    """
    base = small_run()
    try:
        with _soon():
            for name in ("verify", "status", "resume"):
                ended, state = _one_step(name, folder, base)
    except InputError as error:
        sentence = str(error)
        return "refused", None if sentence and "\n" not in sentence else f"the refusal is {sentence!r}"
    except StoreUnavailableError as error:
        return "refused", None if "\n" not in str(error) else f"the refusal is {str(error)!r}"
    except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
        return "traceback", f"{type(error).__name__}: {error}"
    return ended, None if state is not None and _end(state) == base.end else "it ends otherwise than the run itself"


def _one_step(name: str, folder: Path, base: SmallRun) -> tuple[str, TrainingState | None]:
    if name == "verify":
        RunDirectory.open(folder, RUN).contents.verify()
        return "verified", None
    if name == "status":
        status_of(str(folder), RUN)
        return "shown", None
    stored = Run.open(str(folder), RUN)
    config = stored.config
    stored.begin(config)
    state = start_training(config, base.panel)
    run = RunDirectory.open(folder, RUN)
    with run.lock():
        run.load_newest(snapshot_form(state), partial(restore, state))
        began = state.generation
        while state.generation <= GENERATIONS:
            _advance(state)
            run.save(snapshot(state), config.model_dump(mode="json"), epoch=1)
    return f"went on from {'the newest' if began == GENERATIONS else 'an older'} generation", state


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(small_run().store / RUN, folder / RUN))


@contextmanager
def _soon() -> Iterator[None]:
    """Raise `TimeoutError` where a block takes too long; what it logs is not shown."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no end within {_PATIENCE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_PATIENCE_SECONDS)
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
