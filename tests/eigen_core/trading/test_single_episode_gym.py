"""The Gymnasium wrapper: the library's own check, and equality with the environment it wraps."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from trading_cases import prices_of, random_panel

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.trading.environment import TradingEnvironment
from eigen_core.trading.gym import SingleEpisodeEnv


def small_config(trading: dict[str, Any] | None = None) -> Config:
    rules = {"trading_days": 20, "settlement_days": 6, "holding_days": 5, "min_target": 0.02} | (trading or {})
    market = {"window": 5, "validation_days": 60, "holdout_days": 60}
    return Config(market=market, network={"scales": [1, 5]}, trading=rules)


# Boxes without bounds are what the observations and, in the classic rules, the coefficients are.
@pytest.mark.filterwarnings("ignore:.*Box (observation|action) space .* is -?infinity.*:UserWarning")
@pytest.mark.parametrize(
    "trading", [{"rank": "separate"}, {"max_coefficient": None, "observe_portfolio": False, "fill": "same_close"}]
)
def test_gymnasium_accepts_it(trading: dict[str, Any]) -> None:
    environment = SingleEpisodeEnv(random_panel(4, 300, 6), small_config(trading))
    check_env(environment, skip_render_check=True)


@pytest.mark.parametrize(
    ("trading", "values"), [({}, 2), ({"purchases_per_day": 3}, 2), ({"rank": "separate", "purchases_per_day": 2}, 3)]
)
def test_it_equals_the_environment(trading: dict[str, Any], values: int) -> None:
    config, panel = small_config(trading), random_panel(4, 300, 6)
    environment = SingleEpisodeEnv(panel, config)
    observation, info = environment.reset(options={"first_day": 30})
    assert info == {"day": 30}
    many = TradingEnvironment(prices_of(panel), config.trading)
    many.reset(torch.tensor([30]))
    random = np.random.default_rng(1)
    steps = config.trading.episode_days
    for step in range(steps):
        assert environment.observation_space.contains(observation)
        np.testing.assert_array_equal(observation["window"], panel.features[26 + step : 31 + step])
        np.testing.assert_array_equal(observation["portfolio"], many.portfolio()[0])
        np.testing.assert_allclose(observation["episode_time"], [step / steps, float(step < 20)], rtol=1e-6)
        action = random.uniform(0.0, 2.0, (6, values)).astype(np.float32)
        observation, reward, terminated, truncated, info = environment.step(action)
        many.step(*torch.tensor(action).unsqueeze(0).unbind(-1))
        assert reward == float(many.rewards(step))
        assert (terminated, truncated) == (step == steps - 1, False)
    account = many.summary()
    assert account.trades > 0
    for name in ("trades", "wins", "losses", "idle_days", "fees", "reward", "win_rate"):
        assert info[name] == getattr(account, name).item()
    np.testing.assert_array_equal(observation["window"], panel.features[30 + steps - 5 : 30 + steps])
    assert not observation["portfolio"].any()
    assert observation["episode_time"].tolist() == [1.0, 0.0]


def test_random_days_lie_in_the_training_split_and_follow_the_seed() -> None:
    config, panel = small_config(), random_panel(4, 300, 6)
    environment = SingleEpisodeEnv(panel, config)
    days = [environment.reset(seed=9)[1]["day"]] + [environment.reset()[1]["day"] for _ in range(200)]
    assert set(days) <= set(panel.training_starts(config))
    assert len(set(days)) > 50
    again = [environment.reset(seed=9)[1]["day"]] + [environment.reset()[1]["day"] for _ in range(200)]
    assert again == days


def test_the_last_possible_day_and_beyond() -> None:
    config, panel = small_config(), random_panel(4, 300, 6)
    environment = SingleEpisodeEnv(panel, config)
    environment.reset(options={"first_day": 300 - 26})
    action = environment.action_space.sample()
    for _ in range(26):
        observation, *_ = environment.step(action)
    np.testing.assert_array_equal(observation["window"], panel.features[-5:])
    for options in ({"first_day": 3}, {"first_day": 275}, {"first_day": "2001"}, {"first_day": 1.5}, {"day": 7}):
        with pytest.raises(InputError):
            environment.reset(options=options)
    with pytest.raises(ValueError, match="shape"):
        environment.step(np.zeros((6, 3), dtype=np.float32))
