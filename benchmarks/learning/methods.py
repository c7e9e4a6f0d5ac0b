"""Ways to learn that are compared, each as settings over the preset quickstart."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Attributes:
        settings: over the preset's, as `key=value`.
        generations: how many take about as many processor seconds as 10 of the preset's own.
    """

    settings: tuple[str, ...] = ()
    generations: int = 10


METHODS = {
    "both": Method(),
    "gradients": Method(("evolution.enabled=false",)),
    "evolution": Method(("learner.gradient_steps=0",), generations=50),
    "n_step": Method(("learner.n_step=5",)),
    "portfolio": Method(("task=portfolio",)),
}
"""By name; `both` is the preset, gradients and evolution."""
