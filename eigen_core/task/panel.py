"""Base of the tasks on a panel of prices: `market` and `portfolio`. Days are its rows, assets its tradable columns."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Excess
from eigen_core.common.text import FLOAT32_BYTES, count
from eigen_core.config import BatchSamplingConfig, Config, CounterfactualConfig, MarketConfig, OffPolicyConfig
from eigen_core.config.learning import batch_setting, known_return_weight
from eigen_core.machine.performance import columns_at_once
from eigen_core.market import build_panel
from eigen_core.market.bars import SECONDS
from eigen_core.market.build import TrainingDays
from eigen_core.market.features import feature_functions, feature_names
from eigen_core.market.formats import unit_of
from eigen_core.market.panel import Panel, Splits, panel_of_prices
from eigen_core.networks.actions import AssetActions, LinearStart
from eigen_core.networks.agent import AgentNetwork, MarketEmbedding
from eigen_core.networks.encoders import FirstDay, encoder_class
from eigen_core.networks.layout import FEWEST_ROWS, Parameters, padded_outputs
from eigen_core.networks.policies import Heads, SquashedGaussian
from eigen_core.networks.population import agent_groups
from eigen_core.task.interface import Rollout, Task, TaskData, Transitions, require_capacity
from eigen_core.task.replay import Column, Replay
from eigen_core.task.transitions import EPISODE_END, BlockSampler, check_rows, market_columns, stored_days
from eigen_core.trading.baselines import fewest_days
from eigen_core.trading.environment import episode_times
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.prices import Prices
from eigen_core.trading.ridge import relative_gains

_SMALLEST = 1e-12


@dataclass(frozen=True)
class MarketObservation:
    """Observations of agents after the close of days, whose features the encoder looks up.

    Attributes:
        days: int64 `[agents, batch]`, the last day of each observed window of features.
        portfolio: float32 `[agents, batch, assets, values]`; None if agents do not observe their portfolio.
        episode_time: float32 `[agents, batch, 2]`, see `episode_times`.
        block: first day of the block of `PanelTask.block_bars` days that contains all `days`.
    """

    days: Tensor
    portfolio: Tensor | None
    episode_time: Tensor
    block: FirstDay


@dataclass(frozen=True)
class MarketEncoding:
    market: MarketEmbedding
    portfolio: Tensor | None
    episode_time: Tensor

    def detach(self) -> "MarketEncoding":
        return MarketEncoding(self.market.detach(), self.portfolio, self.episode_time)


@dataclass(frozen=True)
class PanelDimensions:
    """The size of a panel: numbers of days, of columns, of assets among the columns, and of features of a column."""

    days: int
    columns: int
    assets: int
    features: int
    unit: str = "day"
    """What a row is called: a day or a bar."""

    @classmethod
    def of_shape(cls, config: Config, days: int, columns: int, assets: int) -> "PanelDimensions":
        """Return the size with the number of features; raise `InputError` if features are columns of the data files."""
        market = config.market
        if market.uses_columns:
            raise InputError(
                "The number of features is not known without the data, since market.features or market.own_features "
                "takes columns of the data as features: plan with the data (market.data), or without such features."
            )
        features = len(feature_names(market.features, has_range=True, has_volume=True))
        features += bool(market.levels) + sum(len(function.names) for function in feature_functions(market))
        return cls(days, columns, assets, features)

    def __str__(self) -> str:
        return (
            f"{count(self.days, self.unit)}, {self.columns:,} columns, {self.assets:,} of them tradable, "
            f"{self.features} features"
        )


def _dates_of_shape(market: MarketConfig, bars: int) -> NDArray[np.datetime64]:
    first, length = np.datetime64("2000-01-01", "s"), SECONDS.get(market.bar, SECONDS["1d"])
    return first + np.arange(bars) * np.timedelta64(length, "s")


def random_panel(market: MarketConfig, size: PanelDimensions) -> Panel:
    generator = keyed_generator(0, 0, "plan", "panel")
    features = generator.standard_normal((size.days, size.columns, size.features), dtype=np.float32)
    close = 100.0 * np.exp(np.cumsum(0.01 * generator.standard_normal((size.days, size.assets)), axis=0))
    dates = _dates_of_shape(market, size.days)
    symbols = [f"S{column}" for column in range(size.columns)]
    names = [f"feature{index}" for index in range(size.features)]
    prices = (close, close * 1.01, close * 0.99, close)
    # The names of its symbols are none of the user's.
    market = market.model_copy(update={"instruments": ()})
    return panel_of_prices(features, *prices, dates, symbols, names, market)


class PanelTask(Task[MarketObservation, MarketEncoding]):
    """The part of `Task` that all tasks on a panel share; `actions` describes an agent's action for each asset."""

    def __init__(
        self,
        config: Config,
        panel: Panel,
        device: torch.device,
        heads: Heads,
        actions: AssetActions,
        start: LinearStart | None,
    ) -> None:
        require_scale(config, panel.splits, self.steps(config))
        if encoder_class(config.network).block_bound and heads.whole_episodes:
            raise InputError(
                f"learner.algorithm {config.learner.algorithm} learns from whole episodes, whose days network.encoder "
                f"{config.network.encoder} cannot encode in one batch: use network.encoder filter_bank."
            )
        self.panel = panel
        self._network_of = partial(
            AgentNetwork, config=config, device=device, heads=heads, actions=actions, start=start
        )
        self.network = self._network_of(panel)
        self.critic_layout = self.network.critic_layout
        self.actor_layout = self.network.actor_layout
        self.box = self.network.box
        stored = getattr(torch, config.replay.actions)
        self.columns: Mapping[str, Column] = market_columns(
            panel.assets, actions.portfolio_values, actions.values, stored
        )
        self.episode_steps = self.min_episode_steps = self.steps(config)
        self.episode_end = EPISODE_END
        self.state: Mapping[str, Tensor] = {}
        self.fingerprint = panel.fingerprint
        self.block_bytes = self._block_bytes(config, device)
        self.play_bytes = self._play_bytes(config)
        self._config, self._device = config, device
        self._return_steps = heads.return_steps
        self._episode_times = episode_times(config.trading, device)
        self._known_returns: tuple[Tensor, Tensor] | None = None
        if known_return_weight(config.learner):
            gains, known, ended = relative_gains(panel, Prices.of_panel(panel, torch.device("cpu")), config.trading)
            known &= ended < panel.splits.train.stop
            returns = np.where(known, gains, 0.0) / max(float(gains[known].std()) if known.any() else 0.0, _SMALLEST)
            self._known_returns = torch.tensor(returns).float().to(device), torch.tensor(known).to(device)

    def observing(self, panel: Panel) -> Self:
        """Return the task of agents that observe the features of `panel`; all else stays that of this task's panel."""
        other = copy(self)
        other.network = self._network_of(panel)
        return other

    def _block_bytes(self, config: Config, device: torch.device) -> int:
        """Return the bytes of the largest activation of one agent's batch, in a layer of encoder or heads."""
        network, batch, columns = config.network, batch_setting(config.learner, "batch_size"), self.panel.columns
        heads = FLOAT32_BYTES * batch * self.panel.assets * network.head_width
        if not self.network.block_bound:
            return max(FLOAT32_BYTES * batch * columns * network.channels, heads)
        train_days = len(self.panel.splits.train)
        block = min(batch_setting(config.learner, "block_bars") or train_days, train_days)
        column_bytes = FLOAT32_BYTES * (block + config.market.window - 1) * padded_outputs(network.channels)
        at_once = columns_at_once(network.column_chunk, columns, column_bytes, device.type)
        return max(column_bytes * max(at_once, -(-FEWEST_ROWS // min(block, batch))), heads)

    def _play_bytes(self, config: Config) -> int:
        """Return the bytes of the encoded days that one agent plays, plus those of the tensors of its decisions."""
        network, evaluation, assets = config.network, config.evaluation, self.panel.assets
        episodes, steps = evaluation.slices + evaluation.fixed_episodes, self.steps(config)
        days = len(self.panel.splits.train) + len(self.panel.splits.validation)
        # An encoder that computes the days before an episode anyway also encodes days between episodes (`day_runs`).
        if not self.network.block_bound:
            days = min(days, episodes * steps)
        encoded = assets * (FLOAT32_BYTES * network.embedding + 1) + FLOAT32_BYTES * network.embedding * network.queries
        # Day by day where agents observe their portfolio, else all days at once.
        at_once = 1 if self.network.portfolio_values else steps
        acting = 4 * FLOAT32_BYTES * assets * network.head_width + encoded
        return days * encoded + episodes * at_once * acting

    @staticmethod
    @abstractmethod
    def steps(config: Config) -> int:
        """Return the number of steps of an episode, one a day, whose transitions the replay stores."""

    @abstractmethod
    def decisions(self, weights: Tensor, starts: NDArray[np.int64]) -> tuple[Tensor, Excess | None]:
        """Play agents without noise; return each asset's share in each decision, and the excess over the market.

        The shares, `[agents * episodes, days, assets]`, are of the day's purchases (`market`) or of the equity
        (`portfolio`). For the arguments see `Task.roll_out`, for the excess `Task.excess`.
        """

    @abstractmethod
    def play(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> tuple[Rollout, Any]:
        """Play like `Task.roll_out`; return the rollout, and the decisions as a type that each task chooses."""

    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> Rollout:
        return self.play(weights, starts, noise, record, fixed)[0]

    @classmethod
    def open_data(cls, config: Config) -> TaskData:
        panel, report = build_panel(config)
        require_scale(config, panel.splits, cls.steps(config))
        unit = unit_of(panel.dates)
        dimensions = PanelDimensions(panel.days, panel.columns, panel.assets, len(panel.feature_names), unit)
        year = count(periods_per_year(panel.dates, config.account), "trading day" if unit == "day" else unit)
        calendar = f"A year has {year}: metrics are annualised by this number (account.periods_per_year)."
        lines = (*report.lines(config.trading), calendar, *cls.warnings(config, panel))
        dates, splits = panel.dates, panel.splits
        named = [("train", piece) for piece in splits.pieces] + [("test", group) for group in splits.tests]
        parts: list[dict[str, str | int]] = [
            {"days": name, "number": len(days), "first": str(dates[days[0]]), "last": str(dates[days[-1]])}
            for name, days in (*named, ("validation", splits.validation), ("holdout", splits.holdout))
            if days
        ]
        return TaskData(panel, str(dimensions), lines, dimensions, parts)

    @staticmethod
    def warnings(config: Config, panel: Panel) -> Sequence[str]:
        """Return warnings, as sentences, about trading rules that do not suit the data."""
        needed, holdout = fewest_days(config.trading), len(panel.splits.holdout)
        if panel.assets > 1 or not holdout:
            return ()
        only = "With one tradable symbol, timing is all that the verdict of a backtest can judge"
        if holdout >= needed:
            return (f"{only}: it compares the agent with its own decisions shifted to other days.",)
        return (
            f"{only}, and no verdict will be possible: it shifts decisions by more than trading.holding_bars "
            f"{config.trading.holding_bars:,}, which needs {needed:,} holdout bars, and market.holdout is "
            f"{holdout:,}. Raise market.holdout or lower trading.holding_bars.",
        )

    @classmethod
    def data_of_shape(cls, config: Config, days: int, columns: int, assets: int) -> TaskData:
        require_scale(config, Splits.of(_dates_of_shape(config.market, days), config.market), cls.steps(config))
        dimensions = PanelDimensions.of_shape(config, days, columns, assets)
        return TaskData(random_panel(config.market, dimensions), str(dimensions), dimensions=dimensions)

    @property
    def training_starts(self) -> Sequence[int]:
        return self.panel.training_starts(self._config)

    @property
    def validation_starts(self) -> range:
        return self.panel.starts(self.panel.splits.validation, self._config)

    @property
    def holdout_starts(self) -> range:
        holdout = self.panel.splits.holdout
        return self.panel.starts(holdout, self._config) if holdout else range(0)

    @property
    def holdout_days(self) -> tuple[str, str, tuple[str, ...]] | None:
        days = self.panel.splits.holdout
        if not days:
            return None
        first, last = (str(self.panel.dates[day]) for day in (days[0], days[-1]))
        return first, last, self.panel.symbols[: self.panel.assets]

    @property
    def block_bars(self) -> int:
        """Number of days in a block: `learner.block_bars`, or all if that is 0 or the encoder needs no blocks."""
        last_day = self.panel.splits.train.stop
        block_bars = batch_setting(self._config.learner, "block_bars")
        return min(block_bars or last_day, last_day) if self.network.block_bound else last_day

    def noise_shape(self, episodes: int) -> tuple[int, ...]:
        return (episodes, self.episode_steps, self.panel.assets, self.box.values)

    def sampler(self, replay: Replay, batch_size: int) -> BlockSampler | None:
        return self.day_sampler(stored_days(replay), self.panel.splits.train.stop, batch_size)

    def day_sampler(self, row_days: NDArray[np.int32], stop: int, batch_size: int) -> BlockSampler | None:
        """Return a sampler of rows of the days `row_days`, all before `stop`; None if no block has days for a batch."""
        sampler = BlockSampler(row_days, min(self.block_bars, stop), stop, self._return_steps, batch_size)
        return sampler if len(sampler.block_starts) else None

    def transitions(self, replay: Replay, slots: Tensor, block: FirstDay) -> Transitions[MarketObservation]:
        first = replay.pick(slots, "day", "step", "portfolio", "action")
        stretches = replay.stretches(slots, self._return_steps, EPISODE_END)
        steps, last = stretches.steps, stretches.last
        days, episode_steps, times = first["day"].long(), first["step"].long(), self._episode_times
        portfolio = next_portfolio = None
        if self.network.portfolio_values:
            portfolio = first["portfolio"].float()
            next_portfolio = replay.pick((last + 1) % replay.capacity, "portfolio")["portfolio"].float()
        return Transitions(
            observations=MarketObservation(days, portfolio, times[episode_steps], block),
            next_observations=MarketObservation(days + steps, next_portfolio, times[episode_steps + steps], block + 1),
            actions=first["action"].float(),
            rewards=replay.pick(stretches.slots, "reward")["reward"] * stretches.mask,
            steps=steps,
            terminal=replay.pick(last, EPISODE_END)[EPISODE_END],
        )

    def encode(self, critic: Parameters, observations: MarketObservation) -> MarketEncoding:
        days = self.network.observed_rows(observations.days)
        market = self.network.encode_days(critic, days, observations.block, self.block_bars)
        return MarketEncoding(market, observations.portfolio, observations.episode_time)

    def policy(self, actor: Parameters, encoding: MarketEncoding) -> SquashedGaussian:
        prepared = self.network.prepare_actor(actor, encoding.market, encoding.episode_time)
        return self.network.policy(actor, prepared, encoding.portfolio)

    def values(self, critic: Parameters, encoding: MarketEncoding, actions: Tensor | None) -> Tensor:
        return self.network.values(critic, encoding.market, encoding.portfolio, encoding.episode_time, actions)

    def known_return_loss(self, critic: Parameters, encoding: MarketEncoding) -> Tensor:
        assert self._known_returns is not None
        days, predicted = encoding.market.days, self.network.predicted_returns(critic, encoding.market)
        returns, known = (part.index_select(0, days.flatten()).view(predicted.shape) for part in self._known_returns)
        error = (predicted - returns) * known
        return (error * error).sum(-1).sum(-1) / known.sum((1, 2)).clamp_min(1)

    def check_rows(self, ring: Ring) -> str | None:
        return check_rows(ring, self.training_starts, self.episode_steps)

    def metadata(self) -> dict[str, JsonValue]:
        return {
            "symbols": list(self.panel.symbols),
            "assets": self.panel.assets,
            "features": list(self.panel.feature_names),
            "panel": self.panel.fingerprint,
            "origin": dict(self.panel.origin),
            "training": asdict(TrainingDays.of(self.panel)),
        }


def held_out_from(days: int) -> int:
    """Return the first of the last fifth of training days, which decides the gate of counterfactual learning."""
    return days * 4 // 5


def require_scale(config: Config, splits: Splits, steps: int) -> None:
    """Raise InputError if replay, batches or blocks do not suit the splits of a panel and episodes of `steps` bars."""
    splits.require(config)
    require_capacity(config, steps)
    learner, held = config.learner, config.trading.holding_bars
    observed = [max(len(piece) - config.market.window, 0) for piece in splits.pieces]
    if not isinstance(learner, BatchSamplingConfig):
        return
    if learner.batch_size > sum(observed):
        raise InputError(
            f"learner.batch_size {learner.batch_size} needs as many different training days, but there are "
            f"{sum(observed):,} after the first window (market.window): lower learner.batch_size."
        )
    learned = held_out_from(sum(max(bars + 1 - held, 0) for bars in observed)) - held
    if isinstance(learner, CounterfactualConfig) and config.network.linear_scales and learner.batch_size > learned:
        raise InputError(
            f"learner.batch_size {learner.batch_size} needs as many different training days, and of those that "
            f"network.linear_scales does not hold out there are {max(learned, 0):,}: lower learner.batch_size."
        )
    steps = learner.n_step if isinstance(learner, OffPolicyConfig) else 1
    if encoder_class(config.network).block_bound and 0 < learner.block_bars < learner.batch_size + steps:
        after = "a day" if steps == 1 else f"{steps} days (learner.n_step)"
        raise InputError(
            f"learner.block_bars {learner.block_bars} must be {learner.batch_size + steps} or more: a batch has "
            f"{learner.batch_size} different days of a block (learner.batch_size), with {after} after each."
        )


def day_runs(days: NDArray[np.int64], days_before: int) -> list[range]:
    """Return the ranges of consecutive days to encode for `days`, int64.

    Two days share a range if at most `days_before` lie between them: the encoder computes as many days before each
    range anyway.
    """
    different = np.unique(days)
    parts = np.split(different, np.flatnonzero(np.diff(different) > days_before + 1) + 1)
    return [range(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]


class EncodedEpisodes:
    """The embeddings of the days of agents' episodes; a day in several episodes of an agent is encoded once.

    Args:
        weights: float32 `[agents, parameters]`.
        starts: first day of each episode, int64 `[agents, episodes]`.
        times: observed time in the episode at each step, float32 `[steps, values]`; see `episode_times`.
    """

    def __init__(self, network: AgentNetwork, weights: Tensor, starts: NDArray[np.int64], times: Tensor) -> None:
        self.actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
        self._network = network
        self._times = times
        rows_of_steps = network.observed_rows(torch.from_numpy(starts[..., None] + np.arange(len(times))))
        observed, later = rows_of_steps.numpy(), rows_of_steps - rows_of_steps[..., :1]
        self._later = None if network.observes_all else later.to(weights.device)
        runs = [day_runs(own, network.days_before) for own in observed]
        days = [np.concatenate(own) for own in runs]
        first_rows = np.cumsum([0, *map(len, days)])
        self._days = network.empty_embedding(int(first_rows[-1]))
        # Agents with the same episodes are encoded together.
        together = len(starts) if bool((starts == starts[0]).all()) else 1
        for agents in agent_groups(len(starts), together):
            rows = self._days.split(slice(*first_rows[[agents.start, agents.stop]]), agents.stop - agents.start)
            self._encode(weights[agents], runs[agents.start], rows)
        places = np.stack([np.searchsorted(*pair) for pair in zip(days, observed, strict=True)])
        self._rows = torch.tensor(places + first_rows[:-1, None, None], device=weights.device)

    def _encode(self, weights: Tensor, runs: list[range], days: MarketEmbedding) -> None:
        network, done = self._network, 0
        for run in runs:
            agents_at_once, days_at_once = network.encoded_at_once(len(weights), len(run), len(self._times))
            for agents in agent_groups(len(weights), agents_at_once):
                critic = network.critic_layout.views(weights[agents, : network.critic_layout.size])
                for first in range(0, len(run), days_at_once):
                    count = min(days_at_once, len(run) - first)
                    days.put(agents, done + first, network.encode_block(critic, run.start + first, count))
            done += len(run)

    def of_step(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the arguments of `prepared` for a step: indices of the episodes' encoded days, and the time."""
        return self._rows[:, :, step], self._times[step]

    def of_all_steps(self) -> Tensor:
        """Return `prepared` for all observed days (see `at_steps`), `[agents, episodes, days, assets, width]`."""
        all_rows, times = self._rows, self._times
        if self._later is not None:
            days = torch.arange(int(self._later.max()) + 1, device=all_rows.device)
            all_rows, times = all_rows[..., :1] + days.minimum(self._later[..., -1:]), times[:1]
        shape = (*all_rows.shape, self._network.assets, self._network.prepared_width)
        prepared = torch.empty(shape, device=all_rows.device)
        # One episode at a time, so that its selected days take little memory.
        for episode, rows in enumerate(all_rows.unbind(1)):
            prepared[:, episode] = self.prepared(rows, times)
        return prepared

    def at_steps(self, values: Tensor) -> Tensor:
        """Return values of observed days, `[agents, episodes, days, ...]`, for each step: of the last day up to it."""
        if self._later is None:
            return values
        agent, episode = (torch.arange(size, device=values.device) for size in values.shape[:2])
        return values[agent[:, None, None], episode[:, None], self._later]

    def prepared(self, rows: Tensor, times: Tensor) -> Tensor:
        """Return the result of `AgentNetwork.prepare_actor` for days, float32 `[agents, days, assets, width]`.

        Args:
            rows: indices of the encoded days, int64 `[agents, days]`, as `of_step` returns them.
            times: time in the episode on each day, float32 `[..., days, values]`.
        """
        return self._network.prepare_actor(self.actor, self._days.picked(rows), times)
