"""The event file of a run: each generation once, whatever happened to the process that wrote it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_cases import record, telemetry

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.config import Config
from eigen_core.reporting.trackers import EVENT_FILE_NAME, TensorBoardTracker, metrics_since

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

HISTORY = [record(generation) for generation in range(1, 6)]
TELEMETRY = [telemetry(generation) for generation in range(1, 6)]


def tracker(root: Path, **settings: Any) -> TensorBoardTracker:
    config = Config(checkpoint={"store": str(root)}, **settings)
    return TensorBoardTracker(RunLocation.of(config.checkpoint, "mine"), config)


def event_file(root: Path) -> Path:
    return root / "mine" / "tensorboard" / EVENT_FILE_NAME


def values_in(path: Path) -> list[tuple[str, int]]:
    return [(value.tag, event.step) for event in EventFileLoader(str(path)).Load() for value in event.summary.value]


def expected(generations: int) -> Counter[tuple[str, int]]:
    found = metrics_since(0, HISTORY[:generations], TELEMETRY[:generations])
    return Counter([("configuration", 0)] + [(name, step) for step, metrics in found for name in metrics])


def test_tensorboard_reads_the_values_of_the_history(tmp_path: Path) -> None:
    tracker(tmp_path).write(HISTORY, TELEMETRY)
    found: dict[tuple[str, int], float] = {}
    for event in EventFileLoader(str(event_file(tmp_path))).Load():
        for value in event.summary.value:
            if value.tag == "configuration":
                assert b"    learner.batch_size: " in value.tensor.string_val[0]
            else:
                found[value.tag, event.step] = value.tensor.float_val[0]
    for step, metrics in metrics_since(0, HISTORY, TELEMETRY):
        assert {name: float(np.float32(value)) for name, value in metrics.items()} == {
            name: value for (name, at), value in found.items() if at == step
        }


def test_generations_are_appended_by_one_process_and_by_the_next(tmp_path: Path) -> None:
    first = tracker(tmp_path)
    for generation in range(4):
        first.write(HISTORY[:generation], TELEMETRY[:generation])
    before = event_file(tmp_path).read_bytes()
    second = tracker(tmp_path)
    for generation in (3, 4, 5):
        second.write(HISTORY[:generation], TELEMETRY[:generation])
    assert Counter(values_in(event_file(tmp_path))) == expected(5)
    # What TensorBoard has read stays where it was.
    assert event_file(tmp_path).read_bytes().startswith(before)


def test_a_process_that_was_killed_while_it_wrote_leaves_nothing_twice(tmp_path: Path) -> None:
    tracker(tmp_path).write(HISTORY, TELEMETRY)
    path = event_file(tmp_path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        tracker(tmp_path).write(HISTORY, TELEMETRY)
        assert Counter(values_in(path)) == expected(5), length


def test_a_file_with_bytes_that_were_never_written_is_cut_before_them(tmp_path: Path) -> None:
    tracker(tmp_path).write(HISTORY[:2], TELEMETRY[:2])
    path = event_file(tmp_path)
    for damage in (bytes(200), b"\xff" * 5, b"\x01" * 300):
        path.write_bytes(path.read_bytes() + damage)
        tracker(tmp_path).write(HISTORY[:2], TELEMETRY[:2])
        assert Counter(values_in(path)) == expected(2)


def test_generations_that_the_history_lost_are_written_when_they_are_computed_again(tmp_path: Path) -> None:
    tracker(tmp_path).write(HISTORY, TELEMETRY)
    again = tracker(tmp_path)
    again.write(HISTORY[:2], TELEMETRY[:2])
    assert Counter(values_in(event_file(tmp_path))) == expected(2)
    again.write(HISTORY, TELEMETRY)
    assert Counter(values_in(event_file(tmp_path))) == expected(5)
    event_file(tmp_path).unlink()
    again.write(HISTORY, TELEMETRY)
    assert Counter(values_in(event_file(tmp_path))) == expected(5)


def test_values_of_another_run_of_this_name_are_replaced(tmp_path: Path) -> None:
    others = [one.model_copy(update={"best_fitness": -7.0}) for one in HISTORY]
    tracker(tmp_path).write(others, TELEMETRY)
    tracker(tmp_path).write(HISTORY[:3], TELEMETRY[:3])
    assert Counter(values_in(event_file(tmp_path))) == expected(3)


def test_a_configuration_that_was_changed_is_shown_from_its_generation_on(tmp_path: Path) -> None:
    tracker(tmp_path).write([], [])
    for generations, count in ((40, 3), (50, 3), (50, 5)):
        tracker(tmp_path, generations=generations).write(HISTORY[:count], TELEMETRY[:count])
    steps = [step for tag, step in values_in(event_file(tmp_path)) if tag == "configuration"]
    assert steps == [0, 0, 3]
    assert Counter(values_in(event_file(tmp_path))) - expected(5) == Counter(
        [("configuration", 0), ("configuration", 3)]
    )


def test_a_folder_of_the_users_holds_a_folder_for_each_run(tmp_path: Path) -> None:
    tracker(tmp_path / "runs", reporting={"tensorboard_folder": str(tmp_path / "logs")}).write(HISTORY, TELEMETRY)
    assert Counter(values_in(tmp_path / "logs" / "mine" / EVENT_FILE_NAME)) == expected(5)
