"""The environment equals an independent per-day implementation, in both forms, for every rule."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from trading_cases import SlowEpisode, prices_of, random_panel

from eigen_core.config import TradingConfig
from eigen_core.market import Panel
from eigen_core.trading.environment import TradingEnvironment, trade_whole_episodes

FILLS = ("next_open", "next_close", "same_close")
CREDITS = ("decision", "realized", "marked")
EPISODES = 16
ASSETS = 7
DAYS = 420


def random_actions(seed: int, episodes: int, steps: int, assets: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients around the threshold with ties, and targets, both partly outside of their bounds."""
    random = np.random.default_rng(seed)
    coefficients = random.normal(0.5, 1.0, (episodes, steps, assets)).round(1)
    coefficients[random.random((episodes, steps)) < 0.2] = 0.0
    coefficients[random.random(coefficients.shape) < 0.05] = 4.0
    coefficients[0] = 0.0
    return coefficients, random.uniform(-0.1, 0.4, coefficients.shape)


CASES: list[tuple[int, dict[str, Any]]] = [
    (index, {"fill": fill, "credit": credit})
    for index, (fill, credit) in enumerate((fill, credit) for fill in FILLS for credit in CREDITS)
]
CASES += [
    (20, {"trading_days": 30, "settlement_days": 1, "holding_days": 1, "fill": "next_open", "credit": "marked"}),
    (21, {"trading_days": 30, "settlement_days": 1, "holding_days": 1, "fill": "next_close", "credit": "marked"}),
    (22, {"trading_days": 30, "settlement_days": 1, "holding_days": 1, "fill": "same_close", "credit": "marked"}),
    (23, {"trading_days": 40, "settlement_days": 12, "holding_days": 7, "buy_threshold": 0.0, "min_target": 0.01}),
    (24, {"max_coefficient": None, "observe_portfolio": False, "cost_bps": 0.0, "slippage_bps": 0.0}),
    (25, {"max_coefficient": None, "fill": "same_close", "credit": "realized", "buy_threshold": 1.7}),
    (26, {"cost_bps": 80.0, "slippage_bps": 60.0, "loss_multiplier": 1.0, "credit": "marked", "min_target": 0.02}),
    *((30 + index, {"purchases_per_day": 3, "fill": fill}) for index, fill in enumerate(FILLS)),
    (33, {"purchases_per_day": ASSETS + 2, "credit": "marked", "buy_threshold": 0.0}),
    (34, {"purchases_per_day": 2, "credit": "realized", "fill": "same_close", "idle_penalty": 3.0}),
    *((40 + index, {"fill": fill, "delisting_days": 7, "delisting_loss": 0.4}) for index, fill in enumerate(FILLS)),
    (43, {"delisting_days": 1, "credit": "marked", "holding_days": 3}),
    (44, {"delisting_days": 2, "credit": "realized", "fill": "next_close"}),
    (27, {"trading_days": 1, "settlement_days": 20, "idle_penalty": 0.0, "no_trade_penalty": 5.0}),
]


@pytest.mark.parametrize(("seed", "rules"), CASES)
def test_both_forms_equal_the_obvious_implementation(seed: int, rules: dict[str, Any]) -> None:
    trading = TradingConfig(**rules)
    panel = random_panel(seed, DAYS, ASSETS)
    steps = trading.episode_days
    first_days = np.random.default_rng(seed).integers(0, DAYS - steps + 1, EPISODES)
    first_days[:2] = DAYS - steps, 0
    assert len(_trades_of_equal_forms(panel, trading, first_days, seed)) > EPISODES / 2


@pytest.mark.thorough
def test_both_forms_equal_it_on_random_markets_with_several_purchases_a_day() -> None:
    """On every other market the agent ranks the assets by a value of its own."""
    several = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        assets, holding = int(random.integers(1, 9)), int(random.integers(1, 7))
        rules: dict[str, Any] = {
            "purchases_per_day": int(random.integers(2, 6)),
            "trading_days": int(random.integers(1, 16)),
            "holding_days": holding,
            "settlement_days": holding,
            "fill": random.choice(FILLS).item(),
            "credit": random.choice(CREDITS).item(),
            "buy_threshold": float(random.choice([0.0, 1.0])),
            "min_target": 0.02,
        }
        trading = TradingConfig(**rules)
        first_days = random.integers(0, 60 - trading.episode_days + 1, 3)
        table = _trades_of_equal_forms(random_panel(seed, 60, assets), trading, first_days, seed, ranked=seed % 2 == 1)
        several += int(table.duplicated(["episode", "decision_day"]).sum())
    assert several > 300


def _trades_of_equal_forms(
    panel: Panel, trading: TradingConfig, first_days: np.ndarray, seed: int, *, ranked: bool = False
) -> pd.DataFrame:
    """All trades, once both forms have been found to equal the obvious one."""
    prices, steps, episodes = prices_of(panel), trading.episode_days, len(first_days)
    actions = list(random_actions(seed, episodes, steps, panel.assets))
    if ranked:
        # With equals, and some outside of their bounds.
        actions.append(np.random.default_rng(seed).uniform(-0.1, 1.1, actions[0].shape).round(1))
    environment = TradingEnvironment(prices, trading, record_trades=True)
    environment.reset(torch.tensor(first_days))
    portfolios = []
    for step in range(steps):
        assert environment.step_index == step
        assert environment.days.tolist() == (first_days + step).tolist()
        portfolios.append(environment.portfolio().numpy())
        environment.step(*(torch.tensor(values[:, step]) for values in actions))
    assert environment.done
    assert not environment.portfolio().any()
    account = environment.summary()
    table = environment.trades()
    whole_rewards, whole_account = trade_whole_episodes(
        prices, trading, torch.tensor(first_days), *(torch.tensor(values) for values in actions)
    )

    sessions: dict[tuple[int, int], bool] = {}
    slow = [
        SlowEpisode(panel, trading, int(first_days[index]), sessions=sessions).run(
            *(values[index] for values in actions)
        )
        for index in range(episodes)
    ]
    slow_rewards = np.array([episode.rewards for episode in slow])
    tolerance = 1e-9 * np.maximum(1.0, np.abs(slow_rewards))
    for fast in (environment.rewards().numpy(), whole_rewards.numpy()):
        assert (np.abs(fast - slow_rewards) <= tolerance).all()
    for summary in (account, whole_account):
        assert summary.trades.tolist() == [len(episode.trades) for episode in slow]
        assert summary.wins.tolist() == [sum(t["gain"] > 0 for t in episode.trades) for episode in slow]
        assert summary.losses.tolist() == [sum(t["gain"] < 0 for t in episode.trades) for episode in slow]
        assert summary.idle_days.tolist() == [episode.idle_days for episode in slow]
        np.testing.assert_allclose(summary.fees, [sum(t["fees"] for t in e.trades) for e in slow], rtol=1e-9)
        np.testing.assert_allclose(summary.reward, slow_rewards.sum(axis=1), rtol=1e-9, atol=1e-9)
        assert ((summary.win_rate >= 0) & (summary.win_rate <= 1)).all()
    _assert_portfolios_equal(np.stack(portfolios, axis=1), slow)
    _assert_trades_equal(table, slow)
    falling = table.groupby(["episode", "decision_day"])["coefficient"].diff().fillna(0.0) <= 0.0
    assert falling.all() or ranked
    return table


def _assert_portfolios_equal(portfolios: np.ndarray, slow: list[SlowEpisode]) -> None:
    expected = np.array([episode.portfolios for episode in slow])
    assert portfolios.dtype == np.float16
    assert (portfolios[..., 0] == expected[..., 0]).all()
    # Half a unit of float16 from the rounding; as much again since a double may be rounded to it in two steps.
    np.testing.assert_allclose(portfolios.astype(np.float64), expected, rtol=1e-3, atol=1e-7)


def _assert_trades_equal(table: pd.DataFrame, slow: list[SlowEpisode]) -> None:
    expected = pd.DataFrame(
        [{"episode": index, **trade} for index, episode in enumerate(slow) for trade in episode.trades],
        columns=["fees", *table.columns],
    ).drop(columns="fees")
    # Of equal coefficients of a day, which come in the order of precedence.
    expected = expected.sort_values(["episode", "decision_day", "asset"], ignore_index=True)
    decisions = ["episode", "decision_day"]
    assert table[decisions].to_numpy().tolist() == expected[decisions].to_numpy().tolist()
    table = table.sort_values(["episode", "decision_day", "asset"], ignore_index=True)
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=1e-12, check_column_type=False)
