"""One episode as a Gymnasium environment, for libraries and notebooks."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.market.panel import Panel
from eigen_core.trading.environment import TradingEnvironment, episode_time
from eigen_core.trading.positions import PORTFOLIO_VALUES
from eigen_core.trading.prices import Prices

Observation = dict[str, Any]
Action = NDArray[np.float32]


class SingleEpisodeEnv(gymnasium.Env[Observation, Action]):
    """One episode over a panel, with the rules of `TradingEnvironment`.

    Observation, a dictionary of float32: `window` `[W, columns, features]`, the panel's features of the last W =
    `market.window` days; `portfolio` `[assets, 4]` as in `TradingEnvironment.portfolio`; `episode_time` `[2]`, the
    time in the episode. The last two are zero if `trading.observe_portfolio` is false. The observation after the last
    step repeats the last day's window.

    Action, float32 `[assets, 2]` in natural units: coefficient and sale target (a fraction) of each asset; if
    `trading.rank` is `separate`, `[assets, 3]` with its rank, from 0 to 1.

    The info of each step has `day`; that of the last also the account of the episode: `trades`, `wins`, `losses`,
    `win_rate`, `idle_days`, `fees`, `reward`. The episode's end is its horizon, which agents see: `terminated`.
    """

    def __init__(self, panel: Panel, config: Config) -> None:
        self._panel = panel
        self._window = config.market.window
        self._starts = panel.training_starts(config)
        self._trading = config.trading
        self._environment = TradingEnvironment(Prices.of_panel(panel, torch.device("cpu")), config.trading)
        infinity = np.inf
        window_shape = (self._window, panel.columns, len(panel.feature_names))
        self.observation_space = spaces.Dict(
            {
                "window": spaces.Box(-infinity, infinity, window_shape, np.float32),
                "portfolio": spaces.Box(-infinity, infinity, (panel.assets, PORTFOLIO_VALUES), np.float32),
                "episode_time": spaces.Box(0.0, 1.0, (2,), np.float32),
            }
        )
        limit = infinity if config.trading.max_coefficient is None else config.trading.max_coefficient
        ranks = config.trading.rank == "separate"
        low = np.array([0.0, config.trading.min_target, *[0.0] * ranks], dtype=np.float32)
        high = np.array([limit, config.trading.max_target, *[1.0] * ranks], dtype=np.float32)
        shape = (panel.assets, len(low))
        self.action_space = spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on a random training day, or on `options["first_day"]`.

        Raises:
            InputError: an option is unknown, or `first_day` has no whole window before it or no whole episode after it.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        first_day = options.pop("first_day", None)
        if options:
            raise InputError(f"reset has no option '{next(iter(options))}': its only one is 'first_day'.")
        if first_day is None:
            first_day = self._starts[int(self.np_random.integers(len(self._starts)))]
        elif not isinstance(first_day, int | np.integer) or first_day < self._window - 1:
            raise InputError(
                f"first_day must be a day from {self._window - 1} on, with a window of {self._window} days before it, "
                f"not {first_day!r}."
            )
        self._environment.reset(torch.tensor([int(first_day)]))
        return self._observation(), {"day": int(first_day)}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Trade one day; see the class for shapes and units.

        Raises:
            RuntimeError: the episode is over or none has begun.
            ValueError: the action has the wrong shape.
            FloatingPointError: at the last step, if an action that counted or a reward is not finite.
        """
        shape = self.action_space.shape
        if np.shape(action) != shape:
            raise ValueError(f"an action must have the shape {shape}, not {np.shape(action)}.")
        values = torch.as_tensor(np.asarray(action, dtype=np.float64)).unsqueeze(0)
        step = self._environment.step_index
        self._environment.step(*values.unbind(-1))
        reward = float(self._environment.rewards(step))
        info: dict[str, Any] = {"day": self._day()}
        if self._environment.done:
            account = self._environment.summary()
            info |= {name: int(getattr(account, name)) for name in ("trades", "wins", "losses", "idle_days")}
            info |= {name: float(getattr(account, name)) for name in ("win_rate", "fees", "reward")}
        return self._observation(), reward, self._environment.done, False, info

    def _day(self) -> int:
        """Day that is observed: of the coming decision, at the end of the episode its last."""
        return int(self._environment.days) - int(self._environment.done)

    def _observation(self) -> Observation:
        day = self._day()
        window = self._panel.features[day - self._window + 1 : day + 1]
        now = episode_time(self._environment.step_index, self._trading)
        return {
            "window": np.array(window, dtype=np.float32),
            "portfolio": self._environment.portfolio()[0].to(torch.float32).numpy(),
            "episode_time": np.array(now, dtype=np.float32),
        }
