"""A report names who holds the memory and what has grown, and is a page and a document."""

import functools
import gc
import json
import mmap
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from memory_cases import MB, HandClock, bare_report

from eigen_core.config.running import MemoryConfig
from eigen_core.memory import MemoryGuard, MemoryReport, host_limits, report_markdown, write_report
from eigen_core.memory.blocks import Block, find_blocks
from eigen_core.memory.objects import Baselines, ObjectCounts, count_objects, held_bytes, live_objects
from eigen_core.units import signed_size, size

_ELEMENTS = 25_000
_BYTES = 4 * _ELEMENTS


@pytest.fixture
def everything_is_seen() -> Iterator[None]:
    """Look at all objects of the process, as in a training: also at those that tests are spared."""
    gc.unfreeze()
    yield
    gc.freeze()


class Holder:
    """Holds a block under a name."""

    def __init__(self, block: object) -> None:
        self.prices = block


class SlottedHolder:
    """Holds a block in a slot."""

    __slots__ = ("prices",)

    def __init__(self, block: object) -> None:
        self.prices = block


class Secretive(Holder):
    """Minds being looked at."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")

    def __len__(self) -> int:
        raise AssertionError("the length was asked for")


def _tensor() -> torch.Tensor:
    return torch.ones(_ELEMENTS)


def _block_of(holder: object, content: str = "") -> Block:
    found = [block for block in find_blocks() if block.owner == type(holder).__qualname__ and content in block.content]
    assert len(found) == 1, found
    return found[0]


CONTENTS = {
    "a tensor": (_tensor, "tensor float32 [25000]"),
    "a view": (lambda: _tensor().reshape(5, -1)[1:3], "tensor float32 [25000]"),
    "an array": (lambda: np.ones(_ELEMENTS, dtype=np.float32), "array float32 [25000]"),
    "a view of an array": (lambda: np.ones(_ELEMENTS, dtype=np.float32)[5:10], "array float32 [25000]"),
    "bytes": (lambda: bytearray(_BYTES), "bytearray"),
    "something in containers": (lambda: [{"a": (_tensor(),)}], "tensor float32 [25000]"),
    "something in a partial": (lambda: deque([functools.partial(print, _tensor())]), "tensor float32 [25000]"),
}


def test_a_block_has_the_name_of_its_holder() -> None:
    holders = {}
    for base in (Holder, SlottedHolder, Secretive):
        for name, (make, content) in CONTENTS.items():
            kind = type(f"{base.__name__} of {name}", (base,), {"__slots__": ()} if base is SlottedHolder else {})
            holders[kind.__qualname__] = (kind(make()), content)
    found = {block.owner: block for block in find_blocks() if block.owner in holders}
    assert found.keys() == holders.keys()
    for owner, (_, content) in holders.items():
        block = found[owner]
        assert (block.name, block.content, block.count) == ("prices", content, 1)
        assert _BYTES <= block.bytes <= _BYTES + 200


def test_blocks_of_the_same_kind_and_holder_are_one_row() -> None:
    holders = [Holder(_tensor()) for _ in range(5)]
    found = _block_of(holders[0], "tensor")
    assert (found.count, found.bytes) == (5, 5 * _BYTES)
    del holders
    gc.collect()
    assert not [block for block in find_blocks() if block.owner == "Holder"]


def test_what_shares_memory_counts_once() -> None:
    array = np.ones(_ELEMENTS, dtype=np.float32)
    holder = Holder([array, torch.from_numpy(array), torch.from_numpy(array)[3:], array[1:]])
    blocks = [block for block in find_blocks() if block.owner == "Holder"]
    assert sum(block.bytes for block in blocks) == _BYTES
    assert holder.prices is not None


def test_a_variable_of_a_running_function_is_a_holder() -> None:
    ready, go = threading.Event(), threading.Event()

    def forward_pass() -> None:
        activations = _tensor()
        ready.set()
        go.wait()
        assert len(activations) == _ELEMENTS

    thread = threading.Thread(target=forward_pass, daemon=True)
    thread.start()
    ready.wait()
    owners = {block.holder for block in find_blocks()}
    go.set()
    thread.join()
    assert any(owner.endswith("forward_pass.activations") for owner in owners), owners


def test_looking_at_variables_keeps_nothing_alive() -> None:
    ready, go, looked, gone = (threading.Event() for _ in range(4))
    died = []

    class Watched(torch.Tensor):
        def __del__(self) -> None:
            died.append(True)

    def forward_pass() -> None:
        activations = torch.ones(_ELEMENTS).as_subclass(Watched)
        ready.set()
        looked.wait()
        del activations
        gone.set()
        go.wait()

    thread = threading.Thread(target=forward_pass, daemon=True)
    thread.start()
    ready.wait()
    find_blocks()
    looked.set()
    gone.wait()
    assert died == [True]
    go.set()
    thread.join()


def test_only_touched_memory_counts_as_resident() -> None:
    block = mmap.mmap(-1, 8 << 20)
    block[: 4 << 20] = b"\1" * (4 << 20)
    holder = Holder(np.frombuffer(block, dtype=np.uint8))
    found = _block_of(holder, "array")
    assert found.bytes == 8 << 20
    assert 4 << 20 <= found.resident < 5 << 20


def test_objects_are_counted_with_their_bytes() -> None:
    before = count_objects()
    tensors = [torch.ones(_ELEMENTS) for _ in range(7)]
    views = [tensor[3:] for tensor in tensors]
    arrays = [Holder(np.ones(_ELEMENTS, dtype=np.float32)) for _ in range(3)]
    strings = [Holder(chr(97 + index) * 10_000) for index in range(4)]
    after = count_objects()

    def more(name: str) -> tuple[int, int]:
        then = before.get(name, (0, 0))
        return after[name][0] - then[0], after[name][1] - then[1]

    name = f"{__name__}.Holder"
    assert more("torch.Tensor")[0] == len(tensors) + len(views)
    assert more("torch.Tensor")[1] == pytest.approx(7 * _BYTES, rel=0.05)
    assert more(name)[0] == len(arrays) + len(strings)
    assert more("numpy.ndarray")[1] == pytest.approx(3 * _BYTES, rel=0.05)
    assert 4 * 10_000 <= more("str")[1] < 4 * 20_000


def test_what_objects_hold_counts_once_and_ends_at_other_objects() -> None:
    shared, shared_array = _tensor(), np.ones(_ELEMENTS, dtype=np.float32)
    holders = [Holder([shared, shared_array, {"own": np.ones(_ELEMENTS, dtype=np.float32)}]) for _ in range(10)]
    assert held_bytes(holders) == pytest.approx(12 * _BYTES, rel=0.05)
    assert held_bytes([Holder(holders)]) < _BYTES


class _Counted:
    """Counts how often it was asked, and takes a while."""

    def __init__(self, clock: HandClock, seconds: float) -> None:
        self.clock, self.seconds, self.times = clock, seconds, 0

    def __call__(self) -> ObjectCounts:
        self.times += 1
        self.clock.now += self.seconds
        return {}


def test_objects_are_counted_when_generations_begin_as_often_as_is_affordable() -> None:
    clock = HandClock()
    count = _Counted(clock, seconds=0.2)
    baselines = Baselines(clock, count)
    counted = []
    for generation in range(5, 110):
        for _phase in range(3):
            before = count.times
            baselines.begin(generation)
            if count.times > before:
                counted.append(generation)
            clock.now += 1.0
    # The first generation, the first that begins 10 seconds later, then every 100 seconds: 34 generations.
    assert counted == [5, 9, 43, 77]
    assert [baseline.generation for baseline in baselines.taken] == [77, 9]


def test_objects_are_counted_when_a_second_generation_begins_that_comes_late_enough() -> None:
    clock = HandClock()
    baselines = Baselines(clock, _Counted(clock, seconds=0.2))
    baselines.start()
    for generation in (1, 2, 3):
        baselines.begin(generation)
        clock.now += 20.0
    assert [baseline.generation for baseline in baselines.taken] == [2]


def test_until_the_early_count_the_process_before_the_run_is_compared_with() -> None:
    clock = HandClock()
    count = _Counted(clock, seconds=0.2)
    baselines = Baselines(clock, count)
    baselines.start()
    baselines.begin(3)
    assert count.times == 1
    assert [baseline.generation for baseline in baselines.taken] == [3]
    baselines.begin(4)
    assert count.times == 1
    clock.now += 10.0
    baselines.begin(5)
    assert count.times == 2
    assert [baseline.generation for baseline in baselines.taken] == [5]


def test_a_guard_that_is_entered_again_does_not_count_the_process_again() -> None:
    baselines = Baselines(count=lambda: {"int": (1, 28)})
    baselines.start()
    first = baselines.of_process
    baselines.start()
    assert first is not None
    assert baselines.of_process is first


def test_a_single_baseline_is_reported_once() -> None:
    baselines = Baselines(HandClock(), dict)
    assert list(baselines.taken) == []
    baselines.begin(1)
    baselines.begin(2)
    assert [baseline.generation for baseline in baselines.taken] == [2]


class LeakedEpisode:
    """What a test leaks."""

    def __init__(self) -> None:
        self.prices = {"close": np.ones(250_000)}


@pytest.fixture(scope="module")
def leaked() -> MemoryReport:
    """A report after a generation that leaked 40 MB in 20 objects."""
    kept = []
    # No time passes by this clock, so that the objects are counted when the second generation begins.
    guard = MemoryGuard(host_limits(MemoryConfig()), MemoryConfig(), clock=HandClock(), watch=False)
    with guard:
        guard.set_plan([{"part": "replay", "host": "87 MB", "device": None}])
        guard.add_section("Uploads", lambda: "none | waiting")
        for generation in (1, 2):
            with guard.phase("train", generation):
                kept += [LeakedEpisode() for _ in range(20)]
        with guard.phase("evolve", 2):
            return guard.report(f"a test asked with {len(kept)} episodes")


def test_growth_names_the_type_that_leaks(leaked: MemoryReport) -> None:
    growth = leaked.growth[0]
    assert growth.generation == 2
    assert growth.types[0].type == f"{__name__}.LeakedEpisode"
    assert (growth.types[0].more, growth.types[0].count) == (20, 40)
    assert growth.types[0].bytes == pytest.approx(40 * MB, rel=0.05)
    assert growth.types[1].type == "numpy.ndarray"
    assert f"{__name__}.LeakedEpisode grew most, by 40 MB" in leaked.headline


def test_the_parts_add_up_to_the_memory_the_largest_first(leaked: MemoryReport) -> None:
    sizes = [part.host + part.device for part in leaked.parts]
    assert sizes == sorted(sizes, reverse=True)
    assert leaked.headline.startswith(f"The largest part is {leaked.parts[0].name} with {size(leaked.parts[0].host)}.")
    assert sum(sizes) >= 0.95 * leaked.host_bytes
    episodes = next(part for part in leaked.parts if part.name == "LeakedEpisode")
    assert episodes.host == pytest.approx(80 * MB, rel=0.05)
    assert episodes.detail == "prices: array float64 [250000] 80 MB x 40"


def test_the_page_has_every_section(leaked: MemoryReport) -> None:
    page = report_markdown(leaked)
    assert page.startswith("# Memory: a test asked with 40 episodes\n\nThe largest part is ")
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "Memory by part",
        "Growth since generation 2 began",
        "Limits",
        "Phases",
        "The plan",
        "Largest tensors and arrays",
        "Live objects by type",
        "Threads",
        "Uploads",
    ]
    assert "| replay | 87 MB |  |" in page
    assert "\nnone | waiting\n" in page
    assert "| evolve | 2 |" in page
    for table in page.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("| ")]
        assert len({line.count(" | ") for line in lines}) <= 1


def test_the_files_are_the_page_and_the_document(leaked: MemoryReport, tmp_path: Path) -> None:
    page, document = write_report(leaked, tmp_path / "memory", "000002")
    assert [page.name, document.name] == ["000002.md", "000002.json"]
    assert page.read_text() == report_markdown(leaked)
    loaded = json.loads(document.read_text())
    assert loaded["reason"] == leaked.reason
    assert loaded["parts"][0]["name"] == leaked.parts[0].name
    assert len(loaded["recent"]) == len(leaked.recent)
    assert sorted(path.name for path in page.parent.iterdir()) == ["000002.json", "000002.md"]


def test_threads_are_shown_with_their_place(leaked: MemoryReport) -> None:
    assert any(line.startswith("MainThread: ") and ".py:" in line for line in leaked.threads)


def test_a_report_without_anything_is_a_page() -> None:
    assert report_markdown(bare_report()).startswith("# Memory: a test\n\nNo part of the memory was found.")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 MB"),
        (1_250_000, "1.2 MB"),
        (87_400_000, "87 MB"),
        (3_721_000_000, "3.72 GB"),
        (-2_000_000_000, "-2.00 GB"),
    ],
)
def test_sizes_are_for_people(amount: float, text: str) -> None:
    assert size(amount) == text
    assert signed_size(amount) == (f"+{text}" if amount > 0 else text)


def test_the_report_holds_nothing_of_what_it_describes() -> None:
    holder = Holder(_tensor())
    guard = MemoryGuard(host_limits(MemoryConfig()), MemoryConfig(), watch=False)
    before = sys.getrefcount(holder.prices)
    report = guard.report("a test")
    after = sys.getrefcount(holder.prices)
    assert after == before
    assert report.blocks


@pytest.mark.thorough
@pytest.mark.usefixtures("everything_is_seen")
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)], ids=["a round", "3 rounds"])
def test_counting_objects_ends_no_thread_that_is_filling_a_tuple(rounds: int) -> None:
    """CPython refuses to resize a tuple to which another object refers, and ends the thread that fills it."""
    stop = threading.Event()
    errors: list[SystemError] = []

    def slowly() -> Iterator[int]:
        for number in range(24):
            time.sleep(0.0005)
            yield number

    def fill() -> None:
        while not stop.is_set():
            try:
                tuple(slowly())
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for _ in range(rounds):
            kept = live_objects()
            count_objects()
            find_blocks()
            del kept
    finally:
        stop.set()
        thread.join()
    assert errors == []
