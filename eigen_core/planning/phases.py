"""The most that a phase holds at once while it computes, beside what stays from phase to phase (bytes).

Each function follows the one of `eigen_core.generation` that it is named after.
"""

from eigen_core.generation.diversity import COMPARED
from eigen_core.planning.scale import Scale

_WITH_COPIES = 1.7
"""How many times as much may live at once where factors of products are copied to bfloat16: measured, at most."""


def _with_copies(scale: Scale, held: int) -> int:
    return int(held * _WITH_COPIES) if scale.config.network.precision == "bfloat16" else held


def evaluate(scale: Scale) -> int:
    """The most at once in the evaluate phase."""
    size, group = scale.config.population.size, scale.playing_group
    recorded, noise = scale.rows_per_generation * scale.task.recorded_row_bytes, scale.noise_bytes
    before = recorded * (size - group) // size
    most = max(before + 4 * noise, before + noise + scale.task.evaluate(group), 2 * recorded + noise)
    return _with_copies(scale, most)


def evaluate_elsewhere(scale: Scale) -> int:
    """The most at once in the evaluate phase where workers play: what they recorded, twice while it is joined."""
    return 2 * scale.rows_per_generation * scale.task.recorded_row_bytes


def train_elsewhere(scale: Scale, *, sent: bool) -> int:
    """The most at once in the train phase where workers learn, as `train`: agents as they come back, and the plan.

    Args:
        scale: the run.
        sent: the replay is sent to workers, all of it to new ones. Else its columns move to shared memory, one by one,
            before agents come back.
    """
    if not scale.learns:
        return 0
    replay = scale.rows_stored * scale.row_bytes
    held = scale.population_bytes + replay if sent else max(scale.population_bytes, scale.column_bytes)
    return held + scale.learner.plan


def hold_out(scale: Scale) -> int:
    """The most at once while the holdout episodes are played: the weights that the run began with, group by group."""
    if not scale.task.holds_out:
        return 0
    return _with_copies(scale, scale.matrix_bytes + scale.task.hold_out(scale.playing_group))


def train(scale: Scale) -> int:
    """The most at once in the train phase, without the second population that it fills; 0 if the run never learns."""
    if not scale.learns:
        return 0
    # A group of all agents learns in the second population itself.
    group = scale.learning_group * scale.learner.agent if scale.learning_group < scale.config.population.size else 0
    # What is learned from is drawn before the second population is made.
    learned = _with_copies(scale, scale.population_bytes + group + scale.learner.learn)
    return max(learned, scale.learner.plan) - scale.population_bytes


def evolve(scale: Scale) -> int:
    """The most at once in the evolve phase: while policies are compared, or while it breeds."""
    sampler, batch = scale.task.sampler(scale.rows_stored), scale.task.batch(scale.group, COMPARED)
    acting = max(batch.encode.plain, batch.encode.result + batch.act.plain)
    compared = sampler.result + batch.transitions + acting
    return _with_copies(scale, max(sampler.plain, compared, scale.method.breed))
