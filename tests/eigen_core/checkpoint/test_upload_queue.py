"""What waits for its upload: bounded, without what retention no longer keeps, and never lost."""

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upload_cases import KEEP_UPLOADED, REFUSED, RUN, Machine, commit

from eigen_core.checkpoint import uploads
from eigen_core.checkpoint.integrity import MANIFESTS
from eigen_core.checkpoint.locks import LeaseLostError
from eigen_core.checkpoint.uploads import NOTHING_TO_DO
from eigen_core.config import CheckpointConfig


def test_without_the_lease_neither_small_files_nor_retention_touch_the_store(tmp_path: Path) -> None:
    machine = Machine(tmp_path, config=KEEP_UPLOADED.model_copy(update={"keep_last": 1, "keep_every": 0}))
    machine.train(1)
    machine.drain()
    machine.train(2)
    content: dict[str, bytes] = {}

    def take_over(operation: str, name: str) -> None:
        if operation == "delete" and "/lease/" in name and not content:
            machine.memory.create(f"{RUN}/lease/000002", b"?")
            content.update(machine.memory.content)
            content.pop(name)

    machine.memory.before = take_over
    with pytest.raises(LeaseLostError):
        machine.uploader.step()
    assert content
    machine.draw("plots/x.png")
    with pytest.raises(LeaseLostError):
        machine.uploader.step()
    assert {name: content[name] for name in content if ".beat" not in name} == {
        name: machine.memory.content[name] for name in machine.memory.content if ".beat" not in name
    }


def test_training_waits_only_above_the_bound_and_is_told_why_again_and_again(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_WARN_SECONDS", 0.01)
    machine.uploader._clock = time.monotonic
    machine.memory.away = True
    for generation in (1, 2, 3):
        machine.uploader.wait_for_queue()
        machine.train(generation)
        machine.uploader.step()
    passed = threading.Event()

    def wait() -> None:
        machine.uploader.wait_for_queue()
        passed.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while caplog.text.count("training waits for uploads. Not in memory://bucket yet: 3 generations") < 3:
        assert not passed.is_set()
    machine.memory.away = False
    machine.drain()
    assert passed.wait(30)
    assert "the store is away" in caplog.text


def test_bytes_bound_the_queue_too_but_one_generation_always_fits(tmp_path: Path) -> None:
    machine = Machine(tmp_path, config=KEEP_UPLOADED.model_copy(update={"queue_mb": 1e-6, "queue_generations": 100}))
    machine.uploader.wait_for_queue()
    machine.train(1)
    passed = threading.Event()

    def wait() -> None:
        machine.uploader.wait_for_queue()
        passed.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not passed.wait(0.05)
    machine.drain()
    assert passed.wait(30)


def test_generations_that_retention_no_longer_keeps_leave_the_queue_and_this_machine(tmp_path: Path) -> None:
    config = CheckpointConfig(keep_last=2, keep_every=5, keep_local=1, queue_generations=50, upload_mb_per_second=0)
    machine = Machine(tmp_path, config=config)
    machine.train(1)
    machine.drain()
    machine.memory.before = lambda operation, _name: setattr(machine.memory, "away", operation == "put_file")
    for generation in range(2, 13):
        machine.train(generation, champion=4 if generation >= 4 else 0)
        assert machine.steps()[-1] != NOTHING_TO_DO
    assert machine.uploader.status().pending == 5
    assert machine.here() == [4, 5, 10, 11, 12]
    machine.memory.before, machine.memory.away = None, False
    machine.drain()
    machine.uploader.finish(0)
    assert machine.stored() == [4, 5, 10, 11, 12]
    assert machine.here() == [12]


def test_a_generation_that_is_on_its_way_is_not_dropped(tmp_path: Path) -> None:
    config = CheckpointConfig(keep_last=1, keep_every=0, upload_mb_per_second=0)
    machine = Machine(tmp_path, config=config)

    def train_on(operation: str, _name: str) -> None:
        if operation == "create":
            machine.memory.before = None
            machine.train(2)
            assert machine.here() == [1, 2]

    machine.train(1)
    machine.memory.before = train_on
    assert machine.uploader.step() == 0
    assert machine.stored() == [1]
    machine.drain()
    assert machine.stored() == [2]
    assert machine.uploader.status().done == 2


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.thorough
def test_at_any_time_what_retention_keeps_is_whole_in_the_store_or_here(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = CheckpointConfig(
        keep_last=data.draw(st.integers(1, 3)),
        keep_every=data.draw(st.integers(0, 4)),
        keep_local=data.draw(st.integers(1, 2)),
        upload_mb_per_second=0,
    )
    machine = Machine(tmp_path_factory.mktemp("run"), config=config)
    generation = champion = 0
    for event in data.draw(st.lists(st.sampled_from(["train", "train", "step", "away", "back", "cut"]), max_size=20)):
        if event == "train":
            generation += 1
            champion = generation if data.draw(st.booleans()) else champion
            machine.train(generation, champion=champion)
        elif event == "step":
            machine.uploader.step()
        elif event == "cut":
            limit = len(machine.memory.done) + data.draw(st.integers(0, 12))
            machine.memory.before = lambda _operation, _name, limit=limit: setattr(
                machine.memory, "away", len(machine.memory.done) >= limit
            )
            machine.uploader.step()
            machine.memory.before = None
        machine.memory.away = event == "away"
        away, machine.memory.away = machine.memory.away, False
        kept = {number for number in range(1, generation + 1) if config.keep_every and number % config.keep_every == 0}
        kept |= {champion} - {0} | set(range(max(1, generation - config.keep_last + 1), generation + 1))
        assert kept <= {*machine.stored(), *machine.here()}
        machine.memory.away = away
    machine.memory.away = False
    machine.drain()
    assert machine.stored()[-1:] == ([generation] if generation else [])


def test_neither_generations_nor_files_starve(machine: Machine) -> None:
    machine.train(1)
    machine.draw("plots/a.png")
    machine.train(2)
    machine.drain()
    arrived = [name for _, name in machine.memory.done if "plots" in name or MANIFESTS in name]
    assert arrived.index(f"{RUN}/plots/a.png") < len(arrived) - 1, "the file did not wait for later generations"

    machine.memory.before = lambda _operation, name: setattr(
        machine.memory, "refusal", REFUSED if "plots" in name else None
    )
    machine.draw("plots/a.png")
    machine.train(3, 4)
    for _ in range(6):
        machine.uploader.step()
    assert machine.stored() == [1, 2, 3, 4]


def test_retention_in_the_store_that_fails_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = CheckpointConfig(keep_last=1, keep_every=0, upload_mb_per_second=0)
    machine = Machine(tmp_path, config=config)
    machine.memory.before = lambda operation, _name: setattr(
        machine.memory, "refusal", REFUSED if operation == "delete" else None
    )
    machine.train(1)
    machine.drain()
    machine.train(2)
    machine.drain()
    assert "old generations in" in caplog.text
    assert machine.stored() == [1, 2]
    machine.memory.before, machine.memory.refusal = None, None
    machine.train(3)
    machine.drain()
    assert machine.stored() == [3]


def test_a_generation_that_is_committed_anew_is_kept_here_until_that_is_safe_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, config=KEEP_UPLOADED)
    machine.train(1, 2)
    machine.drain()
    machine.memory.away = True
    machine.uploader.add(commit(machine.directory, 1, champion=1))
    machine.train(3)
    assert machine.here() == [1, 1, 3]
