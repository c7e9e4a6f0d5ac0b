"""Data sent between the leading process and its workers: arrays, transitions and errors."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from distributed.core import clean_exception, error_message
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.machine import SharedTensor
from eigen_core.task.replay import Replay

OWN_MACHINE = ""
"""Name of the leading process's machine, whose workers read its memory."""

Arrays = dict[str, NDArray[Any]]


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return tensors on the host that share the memory of the arrays, and must not be written to."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def to_tensors(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Return tensors that are copies and can be written to."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


@dataclass(frozen=True)
class SentTransitions:
    """Transitions that make a worker's replay equal to that of the leading process.

    Attributes:
        before: transitions ever appended to the worker's replay before these; None: it begins with an empty replay.
        written: transitions ever appended afterwards.
        rows: the transitions, the newest last.
    """

    before: int | None
    written: int
    rows: Arrays

    @classmethod
    def of(cls, replay: Replay, before: int | None) -> "SentTransitions":
        """Return the transitions after the first `before`; all of the replay if some of those are overwritten."""
        if before is not None and not replay.written - replay.size <= before <= replay.written:
            before = None
        new = replay.size if before is None else replay.written - before
        return cls(before, replay.written, to_arrays(replay.newest(new)))


@dataclass(frozen=True)
class SharedTransitions:
    """A replay in memory that workers of the same machine map; `written`: transitions ever appended to it."""

    columns: Mapping[str, SharedTensor]
    written: int


@dataclass(frozen=True)
class RemoteError:
    """An exception that a worker's method returns: Dask does not tell a raised one from its own errors.

    Attributes:
        serialized: the exception in Dask's form; a plain `Exception` if it cannot be sent.
        text: its type and message.
    """

    serialized: bytes
    text: str

    @classmethod
    def of(cls, error: Exception) -> "RemoteError":
        return cls(error_message(error)["exception"].data, f"{type(error).__name__}: {error}")

    def restored(self) -> Exception:
        """Return the exception; RuntimeError with its text if it could not be sent, or cannot be created here."""
        _, error, _ = clean_exception(self.serialized)
        # `Exception` itself stands for one that Dask could not send or create.
        return error if isinstance(error, Exception) and type(error) is not Exception else RuntimeError(self.text)


def array_bytes(message: Any) -> int:  # noqa: ANN401 - any message
    if isinstance(message, np.ndarray | Tensor):
        return int(message.nbytes)
    if isinstance(message, Mapping):
        message = list(message.values())
    elif is_dataclass(message):
        message = [getattr(message, each.name) for each in fields(message)]
    return sum(map(array_bytes, message)) if isinstance(message, list | tuple) else 0
