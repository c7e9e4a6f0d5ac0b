"""The markets of the bench hold the edge that they state, and the oracle finds it."""

import numpy as np
import pytest

from benchmarks.learning.markets import MARKETS, known_market
from benchmarks.learning.oracle import Oracle, play_oracles, tuned_oracle
from benchmarks.learning.trial import trial_config
from eigen_core.evaluation import spread_starts

_CONFIG = trial_config("plain", 1, 1, "both", ["market.holdout_days=200"])
_DAYS, _ASSETS = 1_200, 8


def test_the_oracle_earns_more_than_buying_what_is_best_every_day() -> None:
    market = known_market(MARKETS["plain"], _CONFIG, 0.3, seed=1, days=_DAYS, assets=_ASSETS)
    oracle = tuned_oracle(market, _CONFIG)
    starts = spread_starts(market.panel.training_starts(_CONFIG), 30)
    always = Oracle(-np.inf, oracle.target)
    rewards = play_oracles([oracle, always], market, _CONFIG, starts).reward.reshape(2, -1).mean(dim=1)
    assert rewards[0] > 1.2 * rewards[1]
    assert oracle.threshold > 0.0


@pytest.mark.parametrize(("kind", "lowest", "highest"), [("plain", -0.1, 0.1), ("factor", 0.1, 0.4)])
def test_assets_have_in_common_what_the_market_says(kind: str, lowest: float, highest: float) -> None:
    market = known_market(MARKETS[kind], _CONFIG, 0.1, seed=2, days=_DAYS, assets=_ASSETS)
    returns = np.diff(np.log(market.panel.close), axis=0)
    correlations = np.corrcoef(returns.T)[np.triu_indices(_ASSETS, k=1)]
    assert lowest < correlations.mean() < highest
