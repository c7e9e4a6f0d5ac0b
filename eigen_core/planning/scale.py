"""All sizes of a run, and the bytes of the blocks that its phases compute with."""

from dataclasses import dataclass

from eigen_core.config import Config
from eigen_core.networks import ACTION_VALUES
from eigen_core.networks.encoders.tcn import receptive_dilations
from eigen_core.planning.facts import PanelFacts, agent_parameters
from eigen_core.trading import EPISODE_TIME_VALUES, PORTFOLIO_VALUES

SINGLE = 4
"""Bytes of a float32."""
DOUBLE = 8
"""Bytes of a float64 or an int64."""
HALF = 2
"""Bytes of a float16."""

_OUTPUTS_AT_A_TIME = 8


def padded(outputs: int) -> int:
    """Outputs of a matrix product as the networks compute it: filled up to whole vectors, a single one apart."""
    return outputs if outputs == 1 else outputs + -outputs % _OUTPUTS_AT_A_TIME


@dataclass(frozen=True)
class Scale:
    """Configuration and panel as plain numbers.

    Attributes:
        config, panel: where they come from.
        critic, actor: values of one agent that the critic's loss and the actor's train.
    """

    config: Config
    panel: PanelFacts
    critic: int
    actor: int

    @classmethod
    def of(cls, config: Config, panel: PanelFacts) -> "Scale":
        """The numbers of a configuration on a panel."""
        return cls(config, panel, *agent_parameters(config, panel.features))

    @property
    def parameters(self) -> int:
        """Values of one agent."""
        return self.critic + self.actor

    @property
    def group(self) -> int:
        """Agents computed at a time."""
        size = self.config.population.size
        return min(self.config.population.group_size or size, size)

    @property
    def episode_days(self) -> int:
        """Days of an episode."""
        return self.config.trading.episode_days

    @property
    def observed(self) -> int:
        """Values of an asset's portfolio state that agents see."""
        return PORTFOLIO_VALUES if self.config.trading.observe_portfolio else 0

    @property
    def context(self) -> int:
        """Values of the market context, the time in the episode included."""
        network = self.config.network
        return network.embedding * network.queries + (EPISODE_TIME_VALUES if self.observed else 0)

    @property
    def filters(self) -> int:
        """Values of a column and day that the encoder reads."""
        network = self.config.network
        return self.panel.features * (len(network.scales) if network.encoder == "filter_bank" else 1)

    @property
    def dilations(self) -> tuple[int, ...]:
        """Dilations of the convolutions of `tcn`."""
        return receptive_dilations(self.config.market.window)

    @property
    def learns(self) -> bool:
        """Whether the run comes to learn by gradients at all."""
        return self.config.learner.gradient_steps > 0 and self.rows_written >= self.config.replay.minimum

    @property
    def rows_per_generation(self) -> int:
        """Transitions that a generation appends to the replay."""
        config = self.config
        return config.population.size * config.evaluation.slices * self.episode_days

    @property
    def rows_written(self) -> int:
        """Transitions that the whole run appends to the replay."""
        return self.rows_per_generation * self.config.generations

    @property
    def rows_stored(self) -> int:
        """Transitions in the replay at the run's end."""
        return min(self.rows_written, self.config.replay.capacity)

    @property
    def row_bytes(self) -> int:
        """Bytes of one transition: day, step, portfolio, action, reward, terminal."""
        assets = self.panel.assets
        return 4 + 2 + HALF * assets * self.observed + SINGLE * assets * ACTION_VALUES + SINGLE + 1

    @property
    def episode_row_bytes(self) -> int:
        """Bytes of one recorded step of an episode, before it is in the replay."""
        assets = self.panel.assets
        return HALF * assets * self.observed + SINGLE * assets * ACTION_VALUES + SINGLE

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one value for each parameter of each agent."""
        return SINGLE * self.config.population.size * self.parameters

    @property
    def population_bytes(self) -> int:
        """Bytes of weights, targets and both moments, and of the counts of steps."""
        return 4 * self.matrix_bytes + 2 * DOUBLE * self.config.population.size

    @property
    def block_days(self) -> int:
        """Days that `tcn` encodes at once to learn from."""
        train_days = self.panel.train_days(self.config)
        return min(self.config.learner.block_days or train_days, train_days)
