"""Groups and threads change speed and memory, never a bit."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from science_cases import learner_with
from training_cases import advance, content_of, small_state

from eigen_core.config.registry import LEARNERS

pytestmark = pytest.mark.cpu

THREADS = [1, 2]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Wide enough for the library's kernels to share out work among threads, and to choose by the number of agents; a small
# batch makes products of few rows.
WIDE: dict[str, Any] = {"channels": 32, "embedding": 16, "queries": 4, "head_width": 32}
ASSETS = 20
SHORT: dict[str, Any] = {"trading_bars": 5, "settlement_bars": 3, "holding_bars": 3}


def bits(threads: int, **sections: Any) -> dict[str, Any]:
    torch.set_num_threads(threads)
    state = advance(small_state(ASSETS, threads=threads, **sections), 2)
    assert all(record.learning is not None for record in state.history)
    return content_of(state)


def kind(encoder: str, twin: bool, observe: bool) -> dict[str, Any]:
    classic = {"observe_portfolio": False, "fill": "same_close", "credit": "realized", "max_coefficient": None}
    return {
        "network": {"encoder": encoder, **WIDE},
        "learner": {"twin_critics": twin, "gradient_steps": 2, "accumulation_steps": 1},
        "trading": SHORT if observe else SHORT | classic,
        "replay": {"minimum": 40},
        "evaluation": {"shared_slices": observe},
    }


@cache
def reference(encoder: str, twin: bool, observe: bool) -> dict[str, Any]:
    return bits(1, **kind(encoder, twin, observe))


# Each pair of values of two of the four occurs.
PAIRS = [
    (encoder, twin, observe, 2 * (twin != (encoder == "tcn")) + (observe != (encoder == "tcn")))
    for encoder, twin, observe in product(["filter_bank", "tcn"], [False, True], [False, True])
]


@pytest.mark.parametrize(("encoder", "twin", "observe", "group_size"), PAIRS)
def test_groups_and_threads_change_no_bit(encoder: str, twin: bool, observe: bool, group_size: int) -> None:
    expected = reference(encoder, twin, observe)
    sections = kind(encoder, twin, observe) | {"population": {"group_size": group_size}}
    for threads in THREADS:
        assert bits(threads, **sections) == expected


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_agents_by_themselves_keep_their_bits_with_many_threads(encoder: str) -> None:
    alone = kind(encoder, twin=False, observe=True) | {"population": {"group_size": 1}}
    assert bits(6, **alone) == reference(encoder, twin=False, observe=True)


@pytest.mark.parametrize(("rank", "learner"), [("coefficient", "ddpg"), ("separate", "sac")])
def test_with_several_purchases_a_day_groups_and_threads_change_no_bit(rank: str, learner: str) -> None:
    several = kind("filter_bank", twin=False, observe=True)
    several["trading"] = several["trading"] | {"purchases_per_bar": 4, "rank": rank}
    several["learner"] = learner_with(learner, **several["learner"])
    expected = bits(1, **several)
    assert bits(2, **several | {"population": {"group_size": 2}}) == expected


SIXTEEN = [(encoder, "ddpg", precision) for encoder in ("filter_bank", "tcn") for precision in ("float32", "bfloat16")]


@pytest.mark.parametrize(
    ("encoder", "learner", "precision"),
    [*SIXTEEN, *(("filter_bank", name, "float32") for name in LEARNERS if name != "ddpg")],
)
@pytest.mark.thorough
def test_sixteen_agents_in_groups_of_any_size(encoder: str, learner: str, precision: str) -> None:
    def sixteen(threads: int, group_size: int) -> dict[str, Any]:
        return bits(
            threads,
            network={"encoder": encoder, "precision": precision, **WIDE},
            population={"size": 16, "group_size": group_size},
            trading=SHORT,
            learner=learner_with(learner, gradient_steps=1, accumulation_steps=2),
        )

    expected = sixteen(1, 16)
    for threads, group_size in ((2, 8), (1, 4), (2, 1)):
        assert sixteen(threads, group_size) == expected


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.thorough
def test_columns_may_be_encoded_some_at_a_time(chunk: int) -> None:
    """Chunks of columns may round otherwise than all at once, but with them too groups and threads change nothing."""
    whole, chunked, grouped = (
        bits(
            threads,
            network={"encoder": "tcn", "column_chunk": columns},
            population={"group_size": group_size},
            learner={"gradient_steps": 1, "accumulation_steps": 1},
        )
        for threads, columns, group_size in ((1, 0, 0), (1, chunk, 0), (2, chunk, 2))
    )
    assert chunked == grouped
    first, other = (content["history"][0] for content in (whole, chunked))
    assert first["fitness"] == pytest.approx(other["fitness"], rel=1e-5)
    assert first["learning"] == pytest.approx(other["learning"], rel=1e-4)
