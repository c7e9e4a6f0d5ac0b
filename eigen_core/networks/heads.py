"""Heads that a learner needs of a task's networks, and the batches that they encode."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Heads:
    """Declaration of a learner, from which every task builds its networks.

    Attributes:
        critics: how many critics an agent has.
        action_values: critics value an observation with an action, Q(s, a); else the observation alone, V(s).
        spread: where the logarithm of the actor's standard deviation comes from. `none`: the actor is deterministic;
            `free`: one parameter for each value of an action; `observed`: outputs of the actor.
        initial_log_std: with what the parameters of `free` start.
        whole_episodes: batches are of any steps of whole episodes, not of one block that a task's sampler draws.
        outcomes: of how many settings of each alternative the actor expects the outcome, to take the best; 0: none.
        return_steps: most steps of an episode that a transition to learn from spans.
    """

    critics: Literal[0, 1, 2] = 1
    action_values: bool = True
    spread: Literal["none", "free", "observed"] = "none"
    initial_log_std: float = 0.0
    whole_episodes: bool = False
    return_steps: int = 1
    outcomes: int = 0
