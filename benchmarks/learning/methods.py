"""Ways to learn that are compared, each as settings over the preset quickstart."""

from dataclasses import dataclass

from eigen_core.config import preset_values


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Attributes:
        settings: over the preset's, as `key=value`.
        generations: how many take about as many processor seconds as 10 of the preset's own.
    """

    settings: tuple[str, ...] = ()
    generations: int = 10


COUNTERFACTUAL = tuple(f"learner.{name}={value}" for name, value in preset_values("counterfactual")["learner"].items())
METHODS = {
    "both": Method(),
    "counterfactual": Method(COUNTERFACTUAL),
    "n_step": Method(("learner.n_step=5",)),
    "portfolio_direct": Method(("task=portfolio", "learner.algorithm=direct", "replay.minimum=1"), generations=3),
    "gradients": Method(("evolution.enabled=false",)),
    "evolution": Method(("learner.gradient_steps=0",), generations=50),
    "portfolio": Method(("task=portfolio",)),
}
"""By name. `both` is the preset: gradients (DDPG) and evolution; methods of a portfolio play the task `portfolio`."""
