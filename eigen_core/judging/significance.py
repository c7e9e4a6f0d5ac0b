"""The error probabilities of a verdict, and the excess that they let it show."""

from scipy.special import nctdtrinc, stdtrit

SIGNIFICANCE = 0.05
"""Greatest probability with which skill may be claimed for agents that have none."""
POWER = 0.8
"""An edge (true excess) counts as one that could have been shown if skill is claimed with at least this probability."""
FEWEST_DAYS = 10
"""With fewer days of returns, statistics of the daily returns are undefined, and so is the verdict."""


def significance_of_each(looks: int) -> float:
    """Return the significance of one result, so that luck gives any of `looks` with probability `SIGNIFICANCE`."""
    return float(1.0 - (1.0 - SIGNIFICANCE) ** (1.0 / max(looks, 1)))


def detectable_ratio(freedom: float, looks: int = 1) -> float:
    """Return the ratio of a true excess and its standard error for which it is significant with probability `POWER`."""
    critical = -stdtrit(freedom, significance_of_each(looks))
    # With an edge, the ratio of mean and error has a noncentral t distribution.
    return float(nctdtrinc(freedom, 1.0 - POWER, critical))
