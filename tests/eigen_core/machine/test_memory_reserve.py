"""A moment without any memory: what is kept back for the report, and a watcher that outlives it."""

import time
from dataclasses import dataclass

import pytest
from memory_cases import HandMeter, hand_guard

from eigen_core.config.model import MemoryConfig
from eigen_core.machine.allocation import keep_reserve
from eigen_core.machine.limits import HostLimit, LimitKind
from eigen_core.machine.usage import Usage, address_space_bytes, own_resident_bytes

MB = 1_000_000


def limits(*kinds: LimitKind) -> list[HostLimit]:
    """A limit of each kind."""
    return [HostLimit(1_000 * MB, kind, kind) for kind in kinds]


def test_addresses_are_kept_back_without_memory_and_given_back() -> None:
    addresses, resident = address_space_bytes(), own_resident_bytes()
    free = keep_reserve(limits("machine", "address_space"))
    assert 100 * MB < address_space_bytes() - addresses < 200 * MB
    assert own_resident_bytes() - resident < 20 * MB
    free()
    assert address_space_bytes() - addresses < 20 * MB
    free()


@pytest.mark.parametrize("kind", ["run", "group", "machine"])
def test_where_no_limit_counts_addresses_none_are_kept_back(kind: LimitKind) -> None:
    addresses = address_space_bytes()
    free = keep_reserve(limits(kind))
    assert address_space_bytes() - addresses < 20 * MB
    free()


def test_where_there_are_no_addresses_left_there_is_no_reserve(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object, **options: object) -> None:  # noqa: ARG001
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("eigen_core.machine.allocation.mmap.mmap", full)
    free = keep_reserve(limits("address_space"))
    assert "No addresses can be kept for a memory report" in caplog.text
    free()


@dataclass
class _BreathlessMeter(HandMeter):
    """Has no memory for some of its looks."""

    failing: bool = False

    def read(self) -> Usage:
        """Look, or fail."""
        usage = super().read()
        if self.failing:
            raise MemoryError
        return usage


def test_the_watcher_goes_on_after_a_look_for_which_there_was_no_memory() -> None:
    meter = _BreathlessMeter()

    def looked_again() -> bool:
        looks, end = meter.looks, time.monotonic() + 10.0
        while meter.looks < looks + 3 and time.monotonic() < end:
            time.sleep(0.001)
        return meter.looks >= looks + 3

    with hand_guard(meter, memory=MemoryConfig(sample_seconds=0.001), watch=True):
        meter.failing = True
        assert looked_again()
        meter.failing = False
        assert looked_again()
