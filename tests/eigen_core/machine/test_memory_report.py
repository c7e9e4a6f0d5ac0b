"""A report names who holds the memory, is a page and a document, and comes on SIGUSR1."""

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from memory_cases import MB

from eigen_core.common.text import size
from eigen_core.config.model import MemoryConfig
from eigen_core.machine import memory_report as module
from eigen_core.machine.allocation import lazy_zeros
from eigen_core.machine.limits import host_limits
from eigen_core.machine.memory_guard import MemoryGuard
from eigen_core.machine.memory_report import MemoryReport, install_report_signal, report_markdown, write_report

_ELEMENTS = 20_000_000


@pytest.fixture
def everything_is_seen() -> Iterator[None]:
    """Look at all objects of the process, as in a training: also at those that tests are spared."""
    gc.unfreeze()
    yield
    gc.freeze()


class Owner:
    """Holds a tensor, a view of it, an array and memory that was never written."""

    def __init__(self) -> None:
        self.prices = torch.ones(_ELEMENTS)
        self.kept = {"views": [self.prices[5:], self.prices], "array": np.ones(1_000_000)}
        self.unwritten = lazy_zeros((50_000_000,), torch.float32)


def guard_of(**owners: object) -> MemoryGuard:
    guard = MemoryGuard(host_limits(MemoryConfig()), MemoryConfig(), watch=False)
    guard.set_owners(lambda: owners)
    return guard


@pytest.fixture(scope="module")
def report() -> MemoryReport:
    """A report while an owner holds 88 MB, and a tensor of 60 MB has no owner that is known."""
    guard = guard_of(prices=Owner())
    unowned = torch.ones(15_000_000)
    with guard:
        guard.set_plan([{"part": "replay", "host": "87 MB", "device": None}])
        for generation in (1, 2):
            with guard.phase("train", generation):
                unowned += 1
        # Other tests of this process hold tensors too: all of them are shown.
        with guard.phase("evolve", 2), patch.object(module, "_ROWS", 100_000):
            return guard.report("a test asked")


def test_the_parts_are_all_of_the_memory_and_owners_have_what_they_hold_once(report: MemoryReport) -> None:
    parts = {part.name: part for part in report.parts}
    assert parts["prices"].host == pytest.approx(88 * MB, rel=0.05)
    assert parts["prices"].detail.startswith(f"float32 [{_ELEMENTS}] 80 MB")
    assert parts["tensors of no known owner"].host >= 60 * MB
    tensors = {(tensor.owner, tensor.content): tensor for tensor in report.tensors}
    assert tensors["prices", f"float32 [{_ELEMENTS}]"].count == 1
    unwritten = tensors["prices", "float32 [50000000]"]
    assert (unwritten.bytes, unwritten.resident) == (200 * MB, 0)
    assert tensors["", "float32 [15000000]"].resident == pytest.approx(60 * MB, rel=0.01)
    sizes = [part.host + part.device for part in report.parts]
    assert sizes == sorted(sizes, reverse=True)
    largest = report.parts[0]
    assert report.headline.endswith(f"The largest part of the run is {largest.name} with {size(largest.host)}.")
    assert sum(sizes) >= 0.95 * report.usage.host


def test_the_files_are_the_page_and_the_document(report: MemoryReport, tmp_path: Path) -> None:
    page, document = write_report(report, tmp_path / "memory", "000002")
    assert page.read_text() == report_markdown(report)
    loaded = json.loads(document.read_text())
    assert (loaded["reason"], loaded["parts"][0]["name"]) == (report.reason, report.parts[0].name)
    assert sorted(page.parent.iterdir()) == [document, page]


def test_the_report_holds_nothing_of_what_it_describes() -> None:
    prices = torch.ones(_ELEMENTS)
    guard = guard_of(prices=[prices])
    before = sys.getrefcount(prices)
    report = guard.report("a test")
    assert sys.getrefcount(prices) == before
    assert report.tensors[0].owner == "prices"


@pytest.mark.thorough
@pytest.mark.usefixtures("everything_is_seen")
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_looking_for_tensors_ends_no_thread_that_is_filling_a_tuple(rounds: int) -> None:
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
            guard_of().report("a test")
    finally:
        stop.set()
        thread.join()
    assert errors == []


PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _handler_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_each_signal_is_answered_after_the_call_before_also_if_that_failed() -> None:
    under_way, running, release, arrived = [0], [], threading.Event(), threading.Semaphore(0)

    def callback() -> None:
        under_way[0] += 1
        running.append(under_way[0])
        arrived.release()
        assert release.wait(PATIENCE)
        under_way[0] -= 1
        raise RuntimeError("no report today")

    undo = install_report_signal(callback)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert arrived.acquire(timeout=PATIENCE)
    os.kill(os.getpid(), signal.SIGUSR1)
    release.set()
    assert arrived.acquire(timeout=PATIENCE)
    undo()
    assert running == [1, 1]


def test_outside_of_the_main_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(install_report_signal, lambda: None).result()
    assert signal.getsignal(signal.SIGUSR1) is before
