"""What the market needs of memory: each function follows the code that it is about, moment after moment.

A "moment" is a sum of blocks that live at the same time; tests compare the largest with a count of all tensors that
live while that code runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.config import Config
from eigen_core.evaluation import spread_starts
from eigen_core.market.panel import PanelFacts, Splits, episode_starts
from eigen_core.needs import DOUBLE, HALF, SINGLE, Change, Kept, Operation, halves
from eigen_core.networks import AssetActions, Heads, market_actions
from eigen_core.networks.agent_needs import AgentNeeds, parameters_of
from eigen_core.networks.encoders import encoder_class
from eigen_core.pieces import agents_at_once, device_kind, encoded_at_once
from eigen_core.replay import Column
from eigen_core.task.encoded_episodes import day_runs
from eigen_core.task.market_outcomes import table_kept
from eigen_core.task.market_sample import market_sample
from eigen_core.task.market_transitions import stored_columns, stored_steps
from eigen_core.task.needs import BatchNeeds, Sample
from eigen_core.trading import PORTFOLIO_VALUES
from eigen_core.trading.orders import episodes_at_once

_OBSERVED_BYTES = HALF * PORTFOLIO_VALUES
_DECISION_BYTES = 3 * DOUBLE + 1
_ORDER_BYTES = 8 * DOUBLE + 3


@dataclass(frozen=True)
class MarketNeeds:
    """Implements `TaskNeeds`.

    Attributes:
        config: the run.
        panel: the size of its panel.
        heads: what its learner needs of the networks.
    """

    config: Config
    panel: PanelFacts
    heads: Heads

    @cached_property
    def _agent(self) -> AgentNeeds:
        encoder = encoder_class(self.config.network).needs(self.config, self.panel)
        return AgentNeeds(self.config, self.panel, self.heads, encoder, self._actions)

    @cached_property
    def _actions(self) -> AssetActions:
        return market_actions(self.config, torch.device("cpu"))

    @property
    def _held_days(self) -> int:
        return self.panel.held_days or self.config.trading.holding_days

    @cached_property
    def _parameters(self) -> tuple[int, int]:
        return parameters_of(self.config, self.panel.features, self.heads, self._actions)

    @property
    def critic(self) -> int:
        """Values of one agent that the critic's loss trains."""
        return self._parameters[0]

    @property
    def actor(self) -> int:
        """Values of one agent that the actor's loss trains."""
        return self._parameters[1]

    @property
    def columns(self) -> Mapping[str, Column]:
        """What one stored transition consists of."""
        return stored_columns(self.config, self.panel.assets, self._actions.portfolio_values, self._actions.values)

    @property
    def episode_steps(self) -> int:
        """Days of an episode that are stored."""
        return stored_steps(self.config)

    @property
    def holds_out(self) -> bool:
        """Whether days are held out for the end."""
        return self.config.market.holdout_days > 0

    @property
    def noise_values(self) -> int:
        """Values of the exploration noise of one agent in one episode."""
        return self.episode_steps * self.panel.assets * self._actions.values

    @property
    def recorded_row_bytes(self) -> int:
        """Portfolio, action and reward of one step."""
        return self.panel.assets * (HALF * self._agent.portfolio_values + SINGLE * self._actions.values) + SINGLE

    @property
    def names_listed(self) -> int:
        """Symbols."""
        return self.panel.columns

    @property
    def _block_bound(self) -> bool:
        return encoder_class(self.config.network).block_bound

    @property
    def learning(self) -> str:
        """How much is encoded at a time."""
        if not self._block_bound:
            return ""
        days = self.panel.block_days(self.config)
        chunk = self._agent.encoder.piece(self.config.learner.batch_size, days).columns
        columns = f"all {chunk:,}" if chunk == self.panel.columns else f"{chunk:,}"
        return f"; blocks of {days:,} days and the window before them, {columns} columns at a time"

    @property
    def block_bytes(self) -> int:
        """A layer of the encoder, or of the heads."""
        batch = self.config.learner.batch_size
        encoder = self._agent.encoder.piece(batch, self.panel.block_days(self.config)).block_bytes
        return max(encoder, self._agent.actor(1, batch).hidden)

    @property
    def kept(self) -> list[Kept]:
        """The panel, prices and what the encoder keeps."""
        panel = self.panel
        cells, traded = panel.days * panel.columns, panel.days * panel.assets
        # The days' lows are never read, so their pages are never touched where they are mapped.
        prices = (3 if panel.mapped else 4) * DOUBLE * traded
        shape = f"[{panel.days:,}, {panel.columns:,}, {panel.features}]"
        mapped = "; mapped from the cache's files, which the system can drop, but resident all the same"
        return [
            Kept(
                "panel",
                f"Features {shape} of 4 bytes, validity of 1, prices of 8{mapped if panel.mapped else ''}.",
                host_bytes=SINGLE * cells * panel.features + cells + prices,
            ),
            Kept(
                "prices",
                "Open, high, close and last known close of the tradable columns and their order on each day, 8 bytes "
                "each, where they can be bought, where there are none and where their market is open.",
                (5 * DOUBLE + 3) * traded + DOUBLE * panel.days + cells,
            ),
            Kept(
                "fills",
                "Price of an order on each day, of purchases and of sales, days of sales and on which they are due, 8 "
                "bytes each, and ends.",
                (9 * DOUBLE + 3) * traded,
            ),
            *self._held_prices_kept,
            *self._agent.encoder.kept,
            *self._outcomes_kept,
        ]

    @property
    def _held_prices_kept(self) -> list[Kept]:
        if not self._agent.portfolio_values:
            return []
        how = (
            "What positions meet on each day: entry price, highs on the first and on later days, last known close, "
            "days to the sale."
        )
        return [Kept("held prices", how, 5 * DOUBLE * self.panel.days * self.panel.assets)]

    @property
    def _outcomes_kept(self) -> list[Kept]:
        trading, train = self.config.trading, range(self.panel.train_days(self.config))
        days = train[episode_starts(train, self.config.market.window, self.episode_steps).start : -trading.holding_days]
        targets = self.heads.outcomes
        return table_kept(len(days), self.panel.assets, targets, self._held_days) if targets else []

    @property
    def play_bytes(self) -> int:
        """The days of its episodes, what is recorded and what a step computes with."""
        evaluation = self.config.evaluation
        episodes = evaluation.slices + evaluation.fixed_episodes
        return self._encoded(1, self.evaluated_days) + self._play(1, episodes, evaluation.slices)

    def evaluate(self, agents: int) -> int:
        """The most at once in `roll_out`, in the episodes of a generation."""
        evaluation = self.config.evaluation
        together = agents if evaluation.shared_slices else 1
        episodes = evaluation.slices + evaluation.fixed_episodes
        return self._roll_out(agents, episodes, self.evaluated_days, together, evaluation.slices)

    def hold_out(self, agents: int) -> int:
        """The most at once in `roll_out`, in the holdout episodes."""
        episodes = self.config.evaluation.holdout_episodes
        days = sum(map(len, self._runs(spread_starts(self._starts("holdout"), episodes))))
        return self._roll_out(agents, episodes, days, agents, 0)

    @property
    def evaluated_days(self) -> int:
        """Days that an agent encodes for the episodes of a generation, those of drawn episodes on average."""
        evaluation, steps = self.config.evaluation, self.episode_steps
        train, validation = self._starts("train"), self._starts("validation")
        spread = (train, evaluation.fitness_slices), (validation, evaluation.validation_slices)
        runs = self._runs(np.concatenate([spread_starts(*each) for each in spread]))
        drawn = range(train.start, train.stop - 1 + steps)
        others = len(drawn) - sum(len(range(run.start, min(run.stop, drawn.stop))) for run in runs)
        return sum(map(len, runs)) + round(others * (1.0 - (1.0 - steps / len(drawn)) ** evaluation.slices))

    def _starts(self, split: str) -> range:
        days = getattr(Splits.of_days(self.panel.days, self.config.market), split)
        return episode_starts(days, self.config.market.window, self.config.trading.episode_days)

    def _runs(self, starts: NDArray[np.int64]) -> list[range]:
        return day_runs(starts, self.episode_steps, self._agent.encoder.days_before)

    def _roll_out(self, agents: int, episodes: int, days: int, together: int, recorded: int) -> int:
        """The most at once in `roll_out`.

        Args:
            agents: that play together.
            episodes: of each.
            days: that each of them encodes.
            together: agents that play the same episodes.
            recorded: episodes of each that are recorded.
        """
        encoded = self._encoded(agents, days)
        return encoded + max(self._encode(together, days), self._play(agents, episodes, recorded))

    def _encoded(self, agents: int, days: int) -> int:
        """Embeddings of assets and context on some days, and which assets have a price."""
        assets = self.panel.assets * (SINGLE * self.config.network.embedding + 1)
        return agents * days * assets + self._agent.context(agents, days)

    def _encode(self, agents: int, days: int) -> int:
        """The most at once while days are encoded, some of some agents at a time."""
        day_bytes = SINGLE * self.panel.columns * self.config.network.channels
        kind, encoder = device_kind(self.config.device), self._agent.encoder
        agents, days = encoded_at_once(agents, days, day_bytes, kind, self.episode_steps, encoder.days_before)
        encoding = encoder.block(agents, days)
        return max(encoding.plain, encoding.result + self._agent.pool(agents, days))

    def _play(self, agents: int, episodes: int, recorded: int) -> int:
        """The most at once while agents play in what is encoded."""
        count, days = agents * episodes, self.episode_steps
        # Days of steps.
        rows = DOUBLE * count * days
        if self._agent.portfolio_values:
            return rows + agents * recorded * days * self.recorded_row_bytes + self._step(count)
        whole = self._agent.actor(count, days)
        played = 2 * SINGLE * count * days * self.panel.assets * self._actions.values
        acting = max(self._choose(count, days, 3), whole.hidden + max(2 * played, self._prepare(agents, days)))
        return rows + max(acting, played + self._trade(count))

    def _prepare(self, agents: int, days: int) -> int:
        """The most at once while the actor is prepared for days that are picked from those that are encoded."""
        actor = self._agent.actor(agents, days)
        return self._encoded(agents, days) + actor.hidden + max(actor.product, actor.hidden)

    def _choose(self, episodes: int, days: int, hidden: int) -> int:
        """The most at once while the actor, which is prepared, acts with so many hidden layers of its own."""
        actor = self._agent.actor(episodes, days)
        if not self.heads.outcomes:
            return hidden * actor.hidden + actor.product
        # What is expected does not depend on the portfolio; then both parts of the margins, and these.
        expect = self._agent.expect(episodes, days)
        return max(expect.plain, actor.hidden + expect.result + 3 * expect.result // 2)

    def _step(self, episodes: int) -> int:
        """The most at once while one day is acted on and traded, with the positions and the orders so far."""
        trading, cells = self.config.trading, episodes * self.panel.assets
        acting = max(self._prepare(episodes, 1), self._choose(episodes, 1, 4)) + SINGLE * cells * PORTFOLIO_VALUES
        choosing = (SINGLE + 2 * DOUBLE) * cells
        held = self._held_days * trading.purchases_per_day
        positions = _OBSERVED_BYTES * self._held_days * (cells + 2 * episodes) + 5 * DOUBLE * episodes * held
        trading_day = positions + _OBSERVED_BYTES * cells + max(acting, choosing, self._resolve(episodes))
        decisions = _DECISION_BYTES * episodes * trading.trading_days * trading.purchases_per_day
        return decisions + max(trading_day, decisions + self._settle(episodes, trading.trading_days * held))

    def _trade(self, episodes: int) -> int:
        """The most at once while whole episodes are traded, with all orders."""
        return self._settle(episodes, self.episode_steps * self.panel.assets)

    def _settle(self, episodes: int, cells: int) -> int:
        """The most at once while orders are made of decisions, some episodes of so many values at a time."""
        days = self.config.trading.trading_days
        orders, at_once = self._orders(episodes * days), min(episodes, episodes_at_once(cells))
        return orders + max(orders, self._resolve(at_once * days))

    def _orders(self, decisions: int) -> int:
        """The orders of decisions."""
        return _ORDER_BYTES * decisions * self.config.trading.purchases_per_day

    def _resolve(self, decisions: int) -> int:
        """Where the prices lie that the orders of decisions meet while they are held, and these prices."""
        return 2 * DOUBLE * decisions * self.config.trading.purchases_per_day * self._held_days

    def sampler(self, rows: int) -> Operation:
        """Slots in the order of their days; while it is made, also the days in this order and where each begins."""
        return Operation(DOUBLE * rows, plain=(DOUBLE + SINGLE + 1) * rows)

    def batch(self, agents: int, batch_size: int) -> BatchNeeds:
        """What learning from a batch of different days needs."""
        encode = self._agent.encode_days(agents, batch_size, self.panel.block_days(self.config))
        cells = agents * batch_size * self.panel.assets
        if self.heads.outcomes:
            # Rewards and shares, what is known of them, and days.
            outcomes = 2 * SINGLE * cells * self.heads.outcomes + cells + DOUBLE * agents * batch_size
            return BatchNeeds(outcomes, encode, self._agent.expect(agents, batch_size), Operation(0, 0))
        values = 2 * self._agent.portfolio_values + self._actions.values
        # Day, the day after, both times in the episode, how many steps; rewards, terminal.
        row = 5 * DOUBLE + SINGLE * self.heads.return_steps + 1
        return BatchNeeds(
            transitions=SINGLE * cells * values + row * agents * batch_size,
            encode=encode,
            act=self._agent.act(agents, batch_size),
            values=self._agent.values(agents, batch_size),
        )

    def changes(self) -> Iterator[Change]:
        """Yield the encoder's changes and shorter blocks."""
        yield from self._agent.encoder.changes()
        if self._block_bound:
            shortest = self.config.learner.batch_size + self.heads.return_steps
            for value in halves(self.panel.block_days(self.config), shortest, 2):
                yield Change({"learner.block_days": value})

    def sample(self, *, whole_group: bool) -> Sample:
        """Return a piece of the run on a market of random numbers."""
        config = self.config
        group = agents_at_once(config.population, self.block_bytes, device_kind(config.device))

        def evaluated_days(config: Config, panel: PanelFacts) -> int:
            return MarketNeeds(config, panel, self.heads).evaluated_days

        return market_sample(config, self.panel, group, evaluated_days, whole_group=whole_group)
