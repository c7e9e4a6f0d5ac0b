"""GPUs: those that this process may use, copies to them, and CUDA graphs (GPU operations that are replayed at once)."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from eigen_core.common.errors import InputError
from eigen_core.machine.allocation import device_cache_kept, is_out_of_memory

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")

# Libraries set themselves up in the first calls, which cannot be captured.
_PLAIN_CALLS = 2


class CapturedStep(Generic[_Input, _Result]):
    """Calls a function; on a GPU, if `captures`, as a CUDA graph from the third call with inputs of the same form on.

    Inputs have the same form if they differ only in the values of tensors. Tensors that the function uses beside its
    input must stay at their addresses; it must copy nothing between device and host, and not wait for the GPU. Its
    input and result are tensors, or tuples, lists and named tuples of tensors and comparable values.
    """

    def __init__(self, function: Callable[[_Input], _Result], device: torch.device, *, captures: bool) -> None:
        self._function = function
        self._captures = captures and device.type == "cuda"
        self._plain_calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, given: _Input) -> _Result:
        """Return the function's result; if a graph computes it, it is a copy, which the next call does not change.

        Raises `InputError` if the function cannot be captured, `RuntimeError` (`is_out_of_memory`) if memory ran out.
        """
        if not self._captures:
            return self._function(given)
        leaves, structure = tree_flatten(given)
        kind = (structure, *map(_kind, leaves))
        if kind not in self._graphs:
            if self._plain_calls[kind] < _PLAIN_CALLS:
                self._plain_calls[kind] += 1
                return self._function(given)
            # Graphs share memory: each result is copied before the next replay.
            pool = next((graph.pool for graph in self._graphs.values()), None)
            self._graphs[kind] = _Graph(lambda held: self._function(tree_unflatten(held, structure)), leaves, pool)
        result: _Result = self._graphs[kind].replay(leaves)
        return result


def _kind(leaf: Any) -> Hashable:  # noqa: ANN401 - any value
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf


@contextmanager
def _captured(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:  # noqa: ANN401 - torch's handle
    """Capture the block's computations in `graph`; its errors are raised unchanged. `pool`: memory of other graphs."""
    # Threads that store checkpoints may ask for memory during the capture.
    capture = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    capture.__enter__()
    try:
        yield
    except BaseException as error:
        try:
            capture.__exit__(type(error), error, error.__traceback__)
        except RuntimeError as following:
            # If it were raised, it would replace the error that says which operator failed.
            error.add_note(f"The end of the capture failed after it: {following}")
        raise
    capture.__exit__(None, None, None)


class _Graph:
    """A captured call on copies of `leaves`, flat inputs, of which only tensors change; `pool`: as in `_captured`."""

    def __init__(self, function: Callable[[list[Any]], Any], leaves: list[Any], pool: Any) -> None:  # noqa: ANN401 - torch's handle
        self._held = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._graph = torch.cuda.CUDAGraph()
        try:
            # The stream's block restores the current stream, which a failed capture does not.
            with (
                device_cache_kept(),
                torch.cuda.stream(torch.cuda.current_stream()),
                _captured(self._graph, pool),
            ):
                self._result = function(self._held)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise InputError(
                f"A step cannot be captured as a CUDA graph ({error}): set cuda_graphs to false, which changes no bit."
            ) from error

    @property
    def pool(self) -> Any:  # noqa: ANN401 - torch's handle
        """Handle of the memory of its result and of its intermediate tensors, for graphs that may use it too."""
        return self._graph.pool()

    def replay(self, leaves: list[Any]) -> Any:  # noqa: ANN401 - the function's
        """Return the result for `leaves` in which tensors have other values."""
        for held, leaf in zip(self._held, leaves, strict=True):
            if isinstance(held, Tensor):
                held.copy_(leaf)
        self._graph.replay()
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, self._result)


def visible_gpus() -> tuple[str, ...]:
    """Return names of the GPUs that this process may use: entries for the variable `CUDA_VISIBLE_DEVICES`."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    # CUDA ignores names after an invalid one.
    return tuple(named.split(",")[:count] if named else map(str, range(count)))


def on_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; on the CPU the tensor shares the array's memory.

    A GPU copies it from pinned memory, so that CPU and GPU do not wait for each other.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
