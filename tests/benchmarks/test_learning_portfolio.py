"""The oracle of weights earns what the signal is worth over equal weights, and nothing where there is none."""

import numpy as np
import pytest
import torch

from benchmarks.learning.judgement import WeightsOracle, tuned_weights_oracle, yearly_excess
from benchmarks.learning.markets import known_market
from benchmarks.learning.trial import trial_config

_CONFIG = trial_config("plain", 1, "both", ["market.holdout_days=300"])


def test_equal_weights_have_no_excess_and_the_oracle_has() -> None:
    market = known_market("plain", _CONFIG, 0.3, seed=1, days=1_300, assets=8)
    span = market.panel.splits.holdout
    oracle = WeightsOracle(2.0, 0.2)
    equal = WeightsOracle(0.0, 1.0)
    weights = torch.stack([one.weights(market, span) for one in (oracle, equal)])
    excess = yearly_excess(market, _CONFIG, span, weights)
    assert excess[0] > 10.0
    assert excess[1] == pytest.approx(0.0, abs=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("edge", "lowest", "highest"),
    [
        (0.0, 0.0, 0.5),
        pytest.param(0.1, 1.0, 16.0, marks=pytest.mark.slow),
        pytest.param(0.3, 4.0, 32.0, marks=pytest.mark.slow),
    ],
)
def test_the_more_the_signal_knows_the_sharper_the_oracle_is(edge: float, lowest: float, highest: float) -> None:
    assert lowest <= tuned_weights_oracle("plain", edge, _CONFIG).sharpness <= highest


def test_the_excess_is_that_of_a_slow_account() -> None:
    market = known_market("factor", _CONFIG, 0.3, seed=2, days=1_300, assets=4)
    span = range(1_000, 1_060)
    weights = WeightsOracle(2.0, 0.2).weights(market, span)
    equal = torch.full_like(weights, 0.25)
    trading = _CONFIG.trading
    side = (1.0 + trading.slippage_bps / 1e4) * (1.0 + trading.cost_bps / 1e4) - 1.0

    def growth(targets: np.ndarray) -> float:
        held, logarithm = np.zeros(4), 0.0
        for day, wanted in enumerate(targets, start=span.start):
            kept = 1.0 - side * np.abs(wanted - held).sum()
            worth = wanted * market.panel.open[day + 2] / market.panel.open[day + 1]
            total = worth.sum() + 1.0 - wanted.sum()
            logarithm += np.log(kept * total)
            held = worth / total
        return 100.0 * logarithm / len(targets)

    expected = 252 * (growth(weights.numpy()) - growth(equal.numpy()))
    assert yearly_excess(market, _CONFIG, span, weights[None])[0] == pytest.approx(expected, rel=1e-3)
