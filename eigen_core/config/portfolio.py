"""The section of the configuration that is about portfolios of weights: the task `portfolio`."""

from typing import Annotated

from pydantic import Field

from eigen_core.config.values import Section


class PortfolioConfig(Section):
    """Which weights an agent can give to assets and cash: the task `portfolio`."""

    short: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """How much can be sold short, as a share of the equity; the weights of long positions reach 1 more than this. Where
    less is sold short than they are above 1, the account borrows the rest. 0: long positions only, at most all of the
    equity, and nothing is ever borrowed."""
    max_score: Annotated[float, Field(gt=0.0, le=20.0)] = 5.0
    """Bound of an asset's score; cash has the score 0. With long positions only, a weight is the larger than another by
    the exponential of the difference of their scores."""
    initial_speed: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Speed of an agent whose weights are 0, around which agents begin: the share of the way to a new score that is
    gone in a day. A slow one turns little over before anything is learned."""
