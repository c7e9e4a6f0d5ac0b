"""What a test does with each operator of torch; its own modes import no compiler and look into arguments fast."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation here
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation here

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; to be left out, torch would import its compiler for seconds.
        return False


# As torch's pytree, which takes several times as long: half of the time of tests that look at each operator.
def leaves_of(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves_of(part)]
    return leaves_of(list(value.values())) if isinstance(value, dict) else [value]
