"""Everything that the phases read back from the device, which a GPU waits for, seen on the stand-in for one."""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from science_cases import method_with, random_panel, small_config
from stand_in_gpu import GPU, GpuTensor, Operator, stand_in_gpu, waits
from torch import Tensor
from torch.utils._pytree import tree_leaves
from training_cases import small_state

import eigen_core
from eigen_core.common.errors import InputError
from eigen_core.config import Config, merge, registry
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.task import open_data
from eigen_core.trading import Prices
from eigen_core.trading.environment import check_first_days

pytestmark = pytest.mark.cpu  # whatever computes otherwise, here it is the stand-in

_PACKAGE = Path(eigen_core.__file__).parent
_ONE_OPTIMIZER = ("sac", "counterfactual", "direct")


class Read(NamedTuple):
    """What a phase reads back from the device, where all agents are computed together.

    Attributes:
        phase, file: where, the file in `eigen_core`.
        reads: how often; where the reason names no number of steps, it depends on none.
        reason: what is read, and why.
        of: tasks, learners and methods with which it is; none: with all.
    """

    phase: str
    file: str
    reads: int
    reason: str
    of: tuple[str, ...] = ()


READS = (
    Read("evaluate", "task/market.py", 1, "rewards: fitness is computed on the host", ("market",)),
    Read("evaluate", "task/market.py", 7, "each count of the episodes' trades, for the record", ("market",)),
    Read("evaluate", "trading/episodes.py", 2, "whether actions are finite, whether rewards are", ("market",)),
    Read("evaluate", "task/portfolio.py", 6, "rewards, and each figure of the accounts", ("portfolio",)),
    Read("evaluate", "task/gymnasium.py", 36, "two parts of the actions in 2 x 9 steps: the host plays", ("gym",)),
    Read("evaluate", "task/replay.py", 2, "days and their slots: batches are drawn by them", ("market", "portfolio")),
    Read("train", "learning/steps.py", 1, "steps taken before, for Adam's corrections", _ONE_OPTIMIZER),
    Read("train", "learning/steps.py", 2, "the same of critics and of actors", ("ddpg", "td3")),
    Read("train", "learning/ppo.py", 2, "ends of the newest episodes; steps taken before", ("ppo",)),
    Read("train", "learning/ppo.py", 16, "who goes on, who has a batch, in 8 steps: each stops by itself", ("ppo",)),
    Read("train", "learning/interface.py", 1, "the curves"),
    Read("train", "generation/phases.py", 1, "whether all weights are finite"),
    Read("evolve", "generation/phases.py", 1, "actions of all agents: their distance is computed on the host"),
    Read("evolve", "learning/cem.py", 1, "mean deviation of the weights, for the record", ("cem",)),
    Read("evolve", "learning/pbt.py", 10, "each gene, to be perturbed on the host and for the record", ("pbt",)),
    Read("evolve", "checkpoint/tensors.py", 7, "weights and each of 6 columns of the replay, for their digests"),
)

_SMALL = {"device": "cuda", "threads": 1, "replay": {"minimum": 1}, "learner": {"gradient_steps": 2}}
_RUNS: dict[str, dict[str, Any]] = {
    **{learner: {"learner": {"algorithm": learner}} for learner in registry.LEARNERS},
    **{
        method: {"evolution": method_with(method, sync_generations=1), "population": {"size": 10}}
        for method in registry.METHODS
    },
    "whole episodes": {"trading": {"observe_portfolio": False}},
    "tcn": {"network": {"encoder": "tcn"}},
    "same close": {"trading": {"fill": "same_close", "credit": "realized"}},
    "portfolio": {"task": "portfolio"},
    "gym": {"task": "gym:uneven_environment:UnevenEnvironment", "environment": {"episode_steps": 9}},
}


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """A machine with the stand-in; counts what makes the host wait for it, by the file of `eigen_core`."""
    reads: Counter[str] = Counter()

    def watch(operator: Operator, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        if waits(operator, args, result):
            files = (Path(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(None))
            reads[next((file.relative_to(_PACKAGE).as_posix() for file in files if _PACKAGE in file.parents), "")] += 1

    with stand_in_gpu(watch):
        yield reads


@pytest.mark.parametrize("sections", list(_RUNS.values()), ids=list(_RUNS))
def test_phases_read_back_what_is_listed_and_nothing_else(sections: dict[str, Any]) -> None:
    config = small_config(**merge(_SMALL, sections))
    chosen = {config.task.partition(":")[0], config.learner.algorithm, config.evolution.method}
    with counted_reads() as reads:
        state = start_training(config, content_of(config))
        for _ in range(2):
            for phase in (evaluate, train, evolve):
                expected: Counter[str] = Counter()
                for row in READS:
                    if row.phase == phase.__name__ and (not row.of or chosen & set(row.of)):
                        expected[row.file] += row.reads
                reads.clear()
                phase(state)
                assert reads == expected, phase


def content_of(config: Config) -> Any:
    return open_data(config).content if config.task.startswith("gym:") else random_panel(config)


def test_days_of_whole_episodes_do_not_wait() -> None:
    found = []
    # The first time a process also tries whether bits depend on groups.
    for trading_days in (10, 10, 15):
        with counted_reads() as reads:
            trading = {"observe_portfolio": False, "trading_days": trading_days}
            evaluate(small_state(**merge(_SMALL, {"trading": trading})))
        found.append(reads)
    assert found[1] == found[2]


def test_first_days_are_checked_where_they_are() -> None:
    with counted_reads() as reads:
        config = small_config(device="cuda")
        prices = Prices.of_panel(random_panel(config), GPU)
        for device, expected in (("cpu", 0), ("cuda", 2)):
            first_days = torch.tensor([70, 75], device=device)
            reads.clear()
            checked = check_first_days(prices, config.trading, first_days)
            assert reads.total() == expected
            assert (checked.device, checked.tolist()) == (GPU, [70, 75])
            with pytest.raises(InputError, match="choose a first day from 0 to"):
                check_first_days(prices, config.trading, first_days - 71)


@pytest.mark.parametrize("learner", ["ddpg", "td3", "sac", "counterfactual"])
def test_a_train_phase_sends_as_often_however_many_its_gradient_steps(learner: str) -> None:
    def sent_with(gradient_steps: int) -> int:
        found = list[bool]()
        with stand_in_gpu(lambda _, args, __, result: found.append(is_sent(args, result))):
            of_learner = {"algorithm": learner, "gradient_steps": gradient_steps}
            state = small_state(**merge(_SMALL, {"learner": of_learner}))
            evaluate(state)
            found.clear()
            train(state)
        return sum(found)

    assert sent_with(4) == sent_with(2) > 0


def is_sent(args: tuple[Any, ...], result: Any) -> bool:
    from_host = any(
        isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor) and leaf.dim() for leaf in tree_leaves(args)
    )
    return from_host and isinstance(result, GpuTensor)
