"""A stand-in for a GPU: tensors that say `cuda` and are computed by the processor, so that a training runs as on one.

It finds what a CPU hides and a GPU refuses: operations on tensors of two devices, numpy arrays of a GPU's tensors, work
that cannot be captured as a CUDA graph. A graph replays the operators that were captured on the same memory.
Every operator passes through `StandInGpu`, where a test may watch it. It has no speed and no kernels of its own: what
those compute is not shown.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from operator_modes import OperatorMode, leaves_of
from torch import Tensor
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda", 0)
MEMORY = 80_000_000_000
_ITEM = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
# They may read from another device, or be told by an index on the host.
_OF_TWO_DEVICES = ("aten.copy_", "aten._to_copy", "aten.index.", "aten.index_put", "aten._index_put")
# What reads back from a GPU, or as many values as are true or different there.
_WAITING = (
    "aten._local_scalar_dense",
    "aten._unique",
    "aten.bincount",
    "aten.equal",
    "aten.item",
    "aten.masked_fill.Tensor",
    "aten.masked_fill_.Tensor",
    "aten.masked_select",
    "aten.multinomial",
    "aten.nonzero",
    "aten.repeat_interleave.Tensor",
    "aten.unique",
)
_BY_INDEX = ("aten.index.", "aten.index_put", "aten._index_put")

Operator = Callable[..., Any]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        parts = [_mapped(function, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {name: _mapped(function, part) for name, part in value.items()}
    return function(value)


class GpuTensor(torch.Tensor):
    """A tensor of the stand-in; `held` has its values, on the processor."""

    held: Tensor

    @staticmethod
    def __new__(cls: "type[GpuTensor]", held: Tensor) -> "GpuTensor":
        # To torch it is on `meta`, the only device without memory whose gradients need no device of their own.
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("meta"),
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override] # an attribute there
        return GPU

    def tolist(self) -> Any:
        """Its values on the host; torch refuses subclasses here."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch has a function there, that is no method
        cls, func: Operator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


class StandInGpu(OperatorMode):  # type: ignore[no-untyped-call] # torch has no annotation here
    """While it is entered, tensors can be made on `cuda`; `watch` is called with each operator on the GPU."""

    def __init__(self, watch: Callable[[Operator, tuple[Any, ...], dict[str, Any], Any], None] | None = None) -> None:
        super().__init__()
        # As the fake mode it keeps torch from looking for a GPU.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self._watch = watch

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = _computed(func, args, kwargs or {})
        if self._watch is not None and any(isinstance(leaf, GpuTensor) for leaf in leaves_of((args, kwargs, result))):
            self._watch(func, args, kwargs or {}, result)
        return result


class _FirstGpu(TorchFunctionMode):
    """`cuda` is its first GPU, as torch would ask the driver; an index that is a list or an array is on the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.tensor and (kwargs or {}).get("device") in ("cuda", GPU):
            return _brought(func(*args, **{**(kwargs or {}), "device": "cpu"}))
        if func in _ITEM and any(isinstance(arg, GpuTensor) for arg in args):
            args = (args[0], _index(args[1]), *args[2:])
        placed = {name: _first(value) for name, value in (kwargs or {}).items()}
        return func(*map(_first, args), **placed)


def _brought(made: Tensor) -> Tensor:
    """Return what is made of values of the host; in inference mode it would stay there."""
    if StandInGraph.capturing is not None:
        _require_captured(torch.tensor, (), [made], made)
    return made if isinstance(made, GpuTensor) else GpuTensor(made)


def _first(value: Any) -> Any:
    return GPU if isinstance(value, torch.device) and value.type == "cuda" else value


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_index(part) for part in index)
    if not isinstance(index, list | np.ndarray):
        return index
    # An empty list would be of numbers with fractions.
    return torch.as_tensor(index, dtype=None if len(index) else torch.int64)


def _computed(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, GpuTensor)}
    others = [tensor for tensor in tensors if not isinstance(tensor, GpuTensor)]
    assert all(tensor.device.type == "cpu" for tensor in others), f"{func} has a tensor without values"
    values = [args[2]] if "index_put" in str(func) else []
    mixed = values if str(func).startswith(_OF_TWO_DEVICES) else others
    if ours and any(tensor.dim() for tensor in mixed if not isinstance(tensor, GpuTensor)):
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} has tensors of cuda:0 and cpu.")
    wanted = next((leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.device)), None)
    # Autograd makes its zeros where it believes the tensors to be.
    on_gpu = bool(ours) if wanted is None else wanted.type in ("cuda", "meta")
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    held_args, held_kwargs = _mapped(_held, (args, kwargs))
    result = func(*held_args, **held_kwargs)
    written = {id(tensor) for tensor in others}

    def given(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        # In inference mode `cpu` and `to` come as they were called, and the processor has nothing to copy.
        if id(value) in written:
            return GpuTensor(value.clone()) if wanted is not None and on_gpu else value
        if id(value) in ours:
            return ours[id(value)] if on_gpu else value.clone()
        return GpuTensor(value) if on_gpu else value

    returned = _mapped(given, result)
    if StandInGraph.capturing is not None and (ours or on_gpu):
        _require_captured(func, args, others, returned)
        StandInGraph.capturing.operators.append((func, held_args, held_kwargs, result))
    return returned


def waits(func: Operator, args: tuple[Any, ...], result: Any) -> bool:
    """Return whether the host waits until a GPU has computed an operator: it reads back, or copies strides there."""
    name, returned = str(func), [leaf for leaf in leaves_of(result) if isinstance(leaf, Tensor)]
    to_host = bool(returned) and not any(isinstance(tensor, GpuTensor) for tensor in returned)
    by_mask = name.startswith(_BY_INDEX) and any(part is not None and part.dtype == torch.bool for part in args[1])
    # In torch's deterministic mode; a number is no tensor there.
    by_strides = name.startswith("aten.scatter") and args[0].dim() > 1 and isinstance(args[3], Tensor)
    return to_host or by_mask or by_strides or name.startswith(_WAITING)


def _require_captured(func: Operator, args: tuple[Any, ...], from_host: list[Tensor], result: Any) -> None:
    """Refuse what a GPU cannot capture: what waits for it, and tensors of the host.

    Some operators take a number of the host as an argument of a kernel, others copy it; none is needed.
    """
    if from_host or waits(func, args, result):
        raise RuntimeError(f"operation not permitted when stream is capturing: {func}")


def _held(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.held if isinstance(value, GpuTensor) else value


class StandInGraph:
    """Operators that were computed while it was captured, to be computed again on the same memory."""

    capturing: ClassVar["StandInGraph | None"] = None
    made: ClassVar[list["StandInGraph"]] = []

    def __init__(self) -> None:
        self.operators: list[tuple[Operator, Any, Any, Any]] = []
        self.replays = 0
        self.made.append(self)

    @torch.inference_mode()
    def replay(self) -> None:
        # While it was captured, where a GPU only writes down, it was computed for the first time.
        self.replays += 1
        for func, args, kwargs, result in self.operators if self.replays > 1 else ():
            leaves: list[Any] = leaves_of((args, kwargs))
            read = {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor)}
            again = func(*args, **kwargs)
            for before, now in zip(leaves_of(result), leaves_of(again), strict=True):
                # What is a view or was written in place has its values already.
                if isinstance(before, Tensor) and before.untyped_storage().data_ptr() not in read:
                    before.copy_(now)

    def pool(self) -> str:
        return "pool"


def captured_graphs() -> list[StandInGraph]:
    return StandInGraph.made


@contextmanager
def _captured(graph: StandInGraph, **_: object) -> Iterator[None]:
    StandInGraph.capturing = graph
    try:
        yield
    except BaseException as error:
        # It takes the place of the block's error, as the one that torch raises at the end of a capture does.
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture") from error
    finally:
        StandInGraph.capturing = None


def _empty_cache() -> None:
    if StandInGraph.capturing is not None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


@contextmanager
def stand_in_gpu(
    watch: Callable[[Operator, tuple[Any, ...], dict[str, Any], Any], None] | None = None,
) -> Iterator[None]:
    driver = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "mem_get_info": lambda _=None: (MEMORY, MEMORY),
        "memory_reserved": lambda _=None: 0,
        "memory_allocated": lambda _=None: 0,
        "empty_cache": _empty_cache,
        "get_device_capability": lambda _=None: (9, 0),
        "get_device_name": lambda _=None: "Stand-in",
        "CUDAGraph": StandInGraph,
        "graph": _captured,
        "current_stream": lambda: None,
        "synchronize": lambda _=None: None,
    }
    lifted, deterministic = torch._C._only_lift_cpu_tensors(), torch.are_deterministic_algorithms_enabled()
    filled = torch._C._get_deterministic_fill_uninitialized_memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandInGraph, "made", [])
        for name, answer in driver.items():
            patch.setattr(torch.cuda, name, answer)
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with _FirstGpu(), StandInGpu(watch):
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(lifted)
            # What a training on a GPU sets for its whole process.
            torch._C._set_deterministic_algorithms(deterministic)
            torch._C._set_deterministic_fill_uninitialized_memory(filled)
