"""The section of the configuration that is about portfolios of weights: the task `portfolio`."""

from typing import Annotated

from pydantic import Field

from eigen_core.config.values import Section


class PortfolioConfig(Section):
    """Which weights an agent can give to assets and cash: the task `portfolio`."""

    short: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """How much can be sold short, as a share of the equity; the weights of long positions reach 1 more than this. 0:
    long positions only, at most all of the equity."""
    max_score: Annotated[float, Field(gt=0.0, le=20.0)] = 5.0
    """Bound of an asset's score; cash has the score 0. With long positions only, a weight is the larger than another by
    the exponential of the difference of their scores."""
