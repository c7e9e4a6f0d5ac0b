"""What the parts of a run need of memory, in the words in which tasks, encoders and learners state it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Facts = Any
"""What a memory plan must know of the data of a task; each task has its own."""

SINGLE = 4
"""Bytes of a float32."""
DOUBLE = 8
"""Bytes of a float64 or an int64."""
HALF = 2
"""Bytes of a float16."""


@dataclass(frozen=True)
class Kept:
    """Something that a task keeps as long as the run lasts.

    Attributes:
        name: what it is.
        how: a sentence that says how its size is computed.
        tensor_bytes: of it, what is where the run computes.
        host_bytes: of it, what is on the host in any case.
        starting: it is there only while the run starts.
    """

    name: str
    how: str
    tensor_bytes: int = 0
    host_bytes: int = 0
    starting: bool = False


@dataclass(frozen=True)
class Operation:
    """What an operation holds at once, beside its inputs (bytes).

    Attributes:
        result: what it returns.
        plain: the most at once without a gradient.
        forward: the most at once with one.
        remembered: what stays for the backward pass, beside the result.
        backward: the most at once in the backward pass, result and `remembered` included.
        to_inputs: the same where only the inputs have a gradient, not the weights.
    """

    result: int
    plain: int
    forward: int = 0
    remembered: int = 0
    backward: int = 0
    to_inputs: int = 0


@dataclass(frozen=True)
class Piece:
    """What is computed at a time of a batch or of a block of days, for one agent.

    Attributes:
        columns: so many columns of the panel.
        block_bytes: the largest block of values that an operation makes then.
    """

    columns: int
    block_bytes: int


class Harm(IntEnum):
    """What a change of settings does to a run."""

    NONE = 0
    """Nothing: the same bits."""
    ROUNDING = 1
    """Sums are taken in another order."""
    RESULT = 2
    """It is another run."""


Value = int | str | tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """Settings, by key as `--set` takes them, that may lower what a run needs."""

    settings: Mapping[str, Value]
    harm: Harm = Harm.RESULT


def halves(value: int, least: int, times: int = 16) -> Iterator[int]:
    """Yield halves of a value in round numbers, as long as they are at least `least`, at most so many times."""
    for _ in range(times):
        half = _rounded((value + 1) // 2)
        if half < least or half == value:
            return
        value = half
        yield value


def _rounded(value: int) -> int:
    """Return a number with at most two digits that are not zero, not above `value`."""
    unit = int(10 ** max(len(str(value)) - 2, 0))
    return value // unit * unit


def powers_below(value: int, least: int) -> Iterator[int]:
    """Yield the powers of two below a value, falling, as long as they are at least `least`."""
    power = 1 << (value - 1).bit_length()
    while (power := power // 2) >= least:
        if power < value:
            yield power
