"""How often the host waits for a GPU, and sends to it, seen on the stand-in for one."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stand_in_gpu import GpuTensor, Operator, stand_in_gpu, waits
from torch import Tensor
from torch.utils._pytree import tree_leaves
from training_cases import advance, small_state

from eigen_core.config import merge
from eigen_core.generation import evaluate, train

pytestmark = pytest.mark.cpu  # whatever computes otherwise, here it is the stand-in

_SMALL = {"device": "cuda", "threads": 1, "replay": {"minimum": 1}, "learner": {"gradient_steps": 2}}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """A machine with the stand-in; counts how often the host waits for it, and sends to it."""
    counts: Counter[str] = Counter()

    def watch(operator: Operator, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        counts["waits"] += waits(operator, args, result)
        counts["sends"] += is_sent(args, result)

    with stand_in_gpu(watch):
        yield counts


def test_phases_wait_as_often_however_many_agents() -> None:
    found = []
    # The first time a process also tries whether bits depend on groups.
    for size in (3, 3, 8):
        with counted() as counts:
            advance(small_state(**merge(_SMALL, {"population": {"size": size}})), 2)
        found.append(counts["waits"])
    assert found[1] == found[2]


def test_days_of_whole_episodes_do_not_wait() -> None:
    found = []
    # The first time a process also tries whether bits depend on groups.
    for trading_days in (10, 10, 15):
        with counted() as counts:
            trading = {"observe_portfolio": False, "trading_days": trading_days}
            evaluate(small_state(**merge(_SMALL, {"trading": trading})))
        found.append(counts["waits"])
    assert found[1] == found[2]


@pytest.mark.parametrize("learner", ["ddpg", "td3", "sac", "counterfactual"])
def test_a_train_phase_waits_and_sends_as_often_however_many_its_gradient_steps(learner: str) -> None:
    def seen_with(gradient_steps: int) -> Counter[str]:
        with counted() as counts:
            of_learner = {"algorithm": learner, "gradient_steps": gradient_steps}
            state = small_state(**merge(_SMALL, {"learner": of_learner}))
            evaluate(state)
            counts.clear()
            train(state)
        return counts

    few, many = seen_with(2), seen_with(4)
    assert many == few
    assert min(few.values()) > 0


def is_sent(args: tuple[Any, ...], result: Any) -> bool:
    from_host = any(
        isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor) and leaf.dim() for leaf in tree_leaves(args)
    )
    return from_host and isinstance(result, GpuTensor)
