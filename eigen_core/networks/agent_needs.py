"""What the networks of an agent hold: each function follows the one of `AgentNetwork` that it is named after."""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from eigen_core.config import Config
from eigen_core.market.panel import Panel, PanelFacts, Splits
from eigen_core.needs import SINGLE, Operation
from eigen_core.networks.actions import AssetActions
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.encoders import EncoderNeeds
from eigen_core.networks.heads import Heads
from eigen_core.networks.layout import product_bytes


def parameters_of(config: Config, features: int, heads: Heads, actions: AssetActions) -> tuple[int, int]:
    """Return how many values of one agent the critic's loss trains, and how many the actor's.

    They depend on the number of features, not on days or columns: the network of a panel of one column says it.
    """
    days = 2
    prices = np.ones((days, 1))
    tiny = Panel(
        features=np.zeros((days, 1, features), dtype=np.float32),
        valid=np.ones((days, 1), dtype=np.bool_),
        open=prices,
        high=prices,
        low=prices,
        close=prices,
        dates=np.arange(days).astype("datetime64[D]"),
        symbols=("one",),
        feature_names=tuple(f"feature{index}" for index in range(features)),
        splits=Splits(range(days), range(days, days), range(days, days)),
        fingerprint="",
    )
    network = AgentNetwork(tiny, config, torch.device("cpu"), heads, actions)
    return network.critic_layout.size, network.actor_layout.size


@dataclass(frozen=True)
class ActorNeeds:
    """Blocks of the actor for some days (bytes).

    Attributes:
        copied: embeddings of the tradable columns, where they are some of all.
        product: a matrix product before its bias is added.
        hidden: a hidden layer.
    """

    copied: int
    product: int
    hidden: int

    @property
    def prepare(self) -> int:
        """The most at once in `prepare_actor`, the result included."""
        return max(self.copied + self.product + self.hidden, 2 * self.hidden)


@dataclass(frozen=True)
class AgentNeeds:
    """What forward and backward passes hold.

    Attributes:
        config: widths of the networks.
        panel: the size of the panel.
        heads: what the learner needs of the networks.
        encoder: what the encoder holds.
        actions: what is decided for each asset.
    """

    config: Config
    panel: PanelFacts
    heads: Heads
    encoder: EncoderNeeds
    actions: AssetActions

    @property
    def portfolio_values(self) -> int:
        """Values of an asset's portfolio state that agents observe."""
        return self.actions.portfolio_values

    def pool(self, agents: int, days: int) -> int:
        """The most at once while the columns are pooled, beside the embeddings."""
        # A copy of the queries for each day is as large as what they pool.
        return 3 * self._scores(agents, days) + self.context(agents, days)

    def _scores(self, agents: int, days: int) -> int:
        return SINGLE * agents * days * self.panel.columns * self.config.network.queries

    def context(self, agents: int, days: int) -> int:
        """The pooled columns."""
        network = self.config.network
        return SINGLE * prod((agents, days, network.embedding, network.queries))

    def actor(self, agents: int, days: int) -> ActorNeeds:
        """Blocks of the actor."""
        network, rows = self.config.network, agents * days * self.panel.assets
        product, hidden = product_bytes(rows, network.head_width)
        copied = 0 if self.panel.assets == self.panel.columns else SINGLE * rows * network.embedding
        return ActorNeeds(copied, product, hidden)

    def encode_days(self, agents: int, batch: int, block_days: int) -> Operation:
        """`AgentNetwork.encode_days`."""
        return self._encode(agents, batch, self.encoder.days(agents, batch, block_days))

    def encode_block(self, agents: int, days: int) -> Operation:
        """`AgentNetwork.encode_block`, with its backward pass; as for picked days where an encoder states no other."""
        encoded = self.encoder.block(agents, days)
        return self._encode(agents, days, encoded if encoded.backward else self.encoder.days(agents, days, days))

    def _encode(self, agents: int, batch: int, encoded: Operation) -> Operation:
        """What an encoder holds, and the pooling of its columns."""
        rows = agents * batch * self.panel.columns
        context = self.context(agents, batch)
        remembered = encoded.remembered + 2 * self._scores(agents, batch) + context
        # Embeddings, pooled columns, and which columns have a price.
        result = encoded.result + context + rows
        pool = encoded.result + self.pool(agents, batch)
        return Operation(
            result,
            plain=max(encoded.plain, pool),
            forward=max(encoded.forward, encoded.remembered + pool),
            remembered=remembered,
            backward=max(result - encoded.result + encoded.backward, result + remembered + 3 * encoded.result),
        )

    def act(self, agents: int, batch: int) -> Operation:
        """`AgentNetwork.prepare_actor` and `act`."""
        actor = self.actor(agents, batch)
        acting = 4 * actor.hidden + actor.product
        return Operation(
            SINGLE * agents * batch * self.panel.assets * self.actions.values,
            plain=max(actor.prepare, acting),
            forward=actor.copied + acting,
            remembered=actor.copied + 2 * actor.hidden,
        )

    def expect(self, agents: int, batch: int) -> Operation:
        """`AgentNetwork.prepare_actor` and `expected`."""
        actor = self.actor(agents, batch)
        product, outputs = product_bytes(agents * batch * self.panel.assets, 2 * self.heads.outcomes)
        hidden = 2 * actor.hidden + max(actor.hidden + actor.product, product + outputs)
        return Operation(
            outputs,
            plain=max(actor.prepare, hidden),
            forward=actor.copied + hidden,
            remembered=actor.copied + 2 * actor.hidden,
            backward=actor.copied + 3 * actor.hidden + 2 * outputs,
        )

    def values(self, agents: int, batch: int) -> Operation:
        """`AgentNetwork.values`, by all critics."""
        cells, network = agents * batch * self.panel.assets, self.config.network
        inputs = SINGLE * cells * (network.embedding + self.actions.values + self.portfolio_values)
        actor, critics = self.actor(agents, batch), self.heads.critics
        plain = inputs + max(3 * actor.hidden, 2 * actor.hidden + actor.product)
        remembered = 2 * critics * actor.hidden
        return Operation(
            SINGLE * critics * agents * batch,
            plain=plain,
            forward=remembered - 2 * actor.hidden + plain,
            remembered=remembered,
            backward=max(remembered + inputs, 2 * inputs) + 2 * actor.hidden + actor.product,
            to_inputs=remembered + 2 * actor.hidden + actor.product,
        )
