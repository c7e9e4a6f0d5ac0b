"""The smallest edges by holding time: from training days alone, and a verdict claims skill there as often as stated."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from trading_cases import Array, panel_of

from eigen_core.config import Config
from eigen_core.judging.backtest import MarketBacktest
from eigen_core.judging.significance import POWER
from eigen_core.judging.smallest_edges import BEST, EdgesHeld, independent_assets, smallest_edges
from eigen_core.judging.verdicts import verdict_on
from eigen_core.market import Panel
from eigen_core.market.panel import Splits
from eigen_core.trading.baselines import trades_by_score
from eigen_core.trading.synthetic import planted_signal
from eigen_core.trading.trades import DecidedTrades

HELD = 5
TRAINING_DAYS = 1_000


def config_with(holdout: int = 250, **trading: Any) -> Config:
    rules = {"trading_bars": 60, "holding_bars": HELD, "settlement_bars": HELD, "slippage_bps": 0.0, "max_target": 9.0}
    market = {"window": 64, "validation": 70, "holdout": holdout, "purge": 64}
    return Config.model_validate({"market": market, "trading": rules | trading})


def days_of(config: Config) -> int:
    """All days of a market, after which the splits leave `TRAINING_DAYS` to train on."""
    market = config.market
    assert isinstance(market.validation, int)
    assert isinstance(market.holdout, int)
    return TRAINING_DAYS + market.validation + market.holdout + 2 * 64


def market_with(config: Config, assets: int = 20, seed: int = 1, shared: Array | None = None) -> Panel:
    """Random walks that have a factor in common, and the steps of `shared`."""
    random, days = np.random.default_rng(seed), days_of(config)
    steps = random.normal(0.0003, 0.02, (days, assets)) + random.normal(0.0, 0.01, (days, 1))
    close = 50.0 * np.exp(np.cumsum(steps if shared is None else steps + shared, axis=0))
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(random.normal(0.0, 0.002, close.shape))
    panel = panel_of(opened, np.maximum(opened, close), close)
    return replace(panel, splits=Splits.of(panel.dates, config.market))


def held(config: Config, panel: Panel, days: int = HELD) -> EdgesHeld:
    (row,) = [row for row in smallest_edges(config, panel)[0] if row.holding_bars == days]
    return row


def test_each_holding_time_has_a_row_and_costs_and_days_change_what_they_should() -> None:
    config = config_with(cost_bps=5.0, holding_bars=3)
    rows, sentence = smallest_edges(config, panel := market_with(config))
    assert [row.holding_bars for row in rows] == [1, 2, 3, 5, 10, 20]
    assert "(20 for the 20 here)" in sentence
    row = held(config, panel)
    # 10 basis points, for scores of some 1.7 standard deviations of 2 % x sqrt(5).
    assert row.pays == pytest.approx(0.001 / (1.7 * 0.02 * HELD**0.5), rel=0.05)
    assert held(config_with(cost_bps=50.0), panel).pays == pytest.approx(10.0 * row.pays, rel=0.02)
    # A gain by which the account pays its costs in 80 % of the cases.
    assert held(dear := config_with(cost_bps=500.0), panel).shown > held(dear, panel).pays
    longer = config_with(holdout=1_000)
    more_days = held(longer, market_with(longer))
    assert more_days.shown == pytest.approx(row.shown / 2.0, rel=0.05)
    assert more_days.pays == pytest.approx(row.pays, rel=0.05)


def test_more_assets_lower_both_but_not_assets_that_move_together() -> None:
    config = config_with()
    few, many = (held(config, market_with(config, assets)) for assets in (10, 40))
    assert many.shown < 0.7 * few.shown
    assert many.pays < 0.9 * few.pays
    random = np.random.default_rng(2)
    groups = 0.2 * random.standard_normal((days_of(config), 5))[:, np.arange(40) % 5]
    own = 0.02 * random.standard_normal(groups.shape)
    assert independent_assets(own) == pytest.approx(40.0, rel=0.03)
    assert independent_assets(groups + own) == pytest.approx(5.0, rel=0.1)
    assert held(config, market_with(config, 40, shared=groups)).shown > 1.5 * many.shown


def test_gaps_and_volatile_assets_do_not_count_as_dependence() -> None:
    returns = np.random.default_rng(4).standard_normal((1_500, 30)) * np.linspace(0.01, 0.05, 30)
    assert independent_assets(returns) == pytest.approx(30.0, rel=0.1)
    returns[:750, :10] = np.nan
    assert 20.0 < independent_assets(returns) < 30.0


def test_prices_after_the_training_days_are_not_used() -> None:
    config = config_with()
    panel = market_with(config)
    jumps = np.zeros_like(panel.close)
    jumps[panel.splits.train.stop :] = np.random.default_rng(3).normal(0.0, 0.1, panel.assets)
    assert smallest_edges(config, market_with(config, shared=jumps)) == smallest_edges(config, panel)


def test_what_cannot_be_estimated_is_a_sentence() -> None:
    config, flat = config_with(), np.full((1_500, 5), 9.0)
    few = {"trading_bars": 5, "settlement_bars": 2, "holding_bars": 2}
    for unclear in (
        smallest_edges(config, market_with(config, assets=1)),
        smallest_edges(config, market_with(config, assets=2)),
        smallest_edges(short := config_with(7, **few), market_with(short)),
        smallest_edges(config, panel_of(flat, flat, flat)),
    ):
        assert unclear == ([], "With so few holdout bars, assets or prices nobody can say which edges could be shown.")
    # Filled at the next close and due at the same: prices cannot change.
    assert smallest_edges(closing := config_with(fill="next_close"), market_with(closing))[0][0].holding_bars == 2


class _Informed(MarketBacktest):
    """Its baseline `ridge` trades by a planted signal."""

    signal: Array
    decided: DecidedTrades | None = None

    def decided_by_ridge(self, span: range) -> DecidedTrades:
        if self.decided is None:
            signal, trading = self.signal[span.start : span.stop], self.config.trading
            score = np.where(signal >= BEST, signal, np.nan)
            self.decided = trades_by_score(self._known(span), trading, score, trading.max_target)
        return self.decided


@pytest.mark.thorough
def test_a_verdict_claims_skill_at_the_smallest_edge_as_often_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow_and_not_part_of_the_claim in ("superiority", "sharpe_interval"):
        monkeypatch.setattr(f"eigen_core.judging.verdicts.{slow_and_not_part_of_the_claim}", lambda *_: None)
    trials, config = 30, config_with()
    edge = held(config, market_with(config)).shown
    claims = []
    for seed in range(trials):
        market = _Informed(config, panel := market_with(config, seed=seed), torch.device("cpu"))
        market.signal = planted_signal(panel, config.trading, edge, seed)
        claims.append(verdict_on(market.play_ridge(panel.splits.holdout, draws=100), config).claim)
    interval = binomtest(claims.count("skill"), trials).proportion_ci()
    assert interval.low < POWER < interval.high
