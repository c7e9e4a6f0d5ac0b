"""Sentences on whether a run still improves and what is wrong with it, by the rules in docs/training.md.

They use only the records of its generations. A *third* is the first or last third of these, rounded up.
"""

from collections.abc import Sequence

import numpy as np

from eigen_core.common.records import GenerationRecord, student_quantile
from eigen_core.common.text import number, percent, signed

Records = Sequence[GenerationRecord]

_FEWEST_GENERATIONS = 10
_ROUNDING = 1e-6
_FEWEST_LEARNED = 6
_LOSS_FACTOR = 100.0
_LARGEST_LOSS = 1e6
_VALIDATION_SHARE = 0.5
_ALIKE = 0.01
_TRADES_OF_AN_IDLE_DAY = 0.05
_LITTLE_NOISE = 0.02
_SHUT = 0.05


def learning_sentences(history: Records) -> list[str]:
    """Return whether the mean fitness still rises, then what is wrong, if a rule applies.

    The list is empty below 10 generations. The sentence on what is wrong names a setting to change. A last one says if
    the agents still trade as the regression does with which they began.
    """
    records = list(history)
    if len(records) < _FEWEST_GENERATIONS:
        return []
    early, late = _thirds(records)
    slope, width = trend([record.mean_fitness for record in late])
    rounding = _ROUNDING * float(np.abs(late[-1].fitness).max())
    rises = slope > max(width, rounding)
    improves = rises or late[-1].champion_score - late[0].champion_score > rounding
    ill = (
        _diverging([record for record in records if record.learning is not None])
        or _fits_the_training(early, late)
        or _idle(late)
        or (None if improves else _one_ancestor(late) or _noise_at_its_floor(early, late))
    )
    fact = "still rises" if rises else "shows no clear rise"
    advice = ": train longer" if rises and ill is None else ""
    sentence = f"The mean fitness of the last {len(late)} generations {fact}, {_interval(slope, width)} a generation"
    return [f"{sentence}{advice}.", *(said for said in (ill, _ridge_alone(late)) if said is not None)]


def ridge_score(history: Records) -> float | None:
    """Return the best score of the agents as they began, which is a ridge regression's; None without a linear part."""
    first = history[0]
    return first.champion_score if (first.learning or {}).get("gate", 1.0) < 1.0 else None


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the slope per step of a line through at least three values, and half the width of its 95 % interval.

    Least squares, with fewer degrees of freedom if neighbouring residuals correlate: n values whose lag-1 correlation
    is r > 0 count as n (1 - r) / (1 + r) (Santer et al. 2000, "Statistical significance of trends and trend
    differences in layer-average atmospheric temperature time series").
    """
    y = np.array(values, dtype=np.float64)
    x = np.arange(len(y)) - (len(y) - 1) / 2.0
    slope = float(x @ y / (x @ x))
    residuals = y - y.mean() - slope * x
    squares = float(residuals @ residuals)
    correlation = max(0.0, float(residuals[1:] @ residuals[:-1]) / squares) if squares else 0.0
    freedom = max(1.0, len(y) * (1.0 - correlation) / (1.0 + correlation) - 2.0)
    return slope, student_quantile(freedom) * float(np.sqrt(squares / freedom / (x @ x)))


def _thirds(records: Records) -> tuple[Records, Records]:
    third = -(-len(records) // 3)
    return records[:third], records[-third:]


def _gain(early: Sequence[float], late: Sequence[float]) -> tuple[float, float]:
    """Return the difference of two means, and half the width of its 95 % interval by Welch's t test."""
    errors = np.array([np.var(values, ddof=1) / len(values) for values in (early, late)])
    total = float(errors.sum())
    freedom = total**2 / float((errors**2).sum()) * (len(late) - 1) if total else 1.0
    return float(np.mean(late) - np.mean(early)), student_quantile(freedom) * total**0.5


def _interval(middle: float, width: float) -> str:
    return f"{signed(middle)} ± {number(width)}"


def _diverging(learned: Records) -> str | None:
    if len(learned) < _FEWEST_LEARNED:
        return None
    early, late = _thirds(learned)
    sizes = [float(np.median([np.abs(record.fitness).max() for record in part])) for part in (early, late)]
    # A squared error grows with the square of the rewards without any fault.
    allowed = _LOSS_FACTOR * max(1.0, (sizes[1] / sizes[0]) ** 2 if sizes[0] else np.inf)
    for name in learned[0].learning or {}:
        before, after = ([(record.learning or {}).get(name, 0.0) for record in part] for part in (early, late))
        level = min(before)
        # The losses of actors are minus a value or an objective, which may have any size.
        squared = name.endswith("_loss") and not name.startswith(("actor", "policy"))
        if squared and level > 0.0 and min(after) >= min(allowed * level, _LARGEST_LOSS):
            return (
                f"Learning diverges: the {name.replace('_', ' ')} was {level:.3g} in the first third of generations, "
                f"and is at least {min(after):.3g} in the last third. Train with smaller steps, for example --set "
                "learner.critic_learning_rate=0.0001."
            )
    return None


def _fits_the_training(early: Records, late: Records) -> str | None:
    fitness, error = _gain(*([record.mean_fitness for record in part] for part in (early, late)))
    validation, width = _gain(*([float(np.mean(record.validations)) for record in part] for part in (early, late)))
    excess, luck = late[-1].champion_excess, 0.0
    if excess is not None:
        low, high = excess.interval
        if low > 0.0:
            return None
        # The interval is for one agent, and without the moves of the market as a whole: so twice half of it.
        luck = (high - low) * (late[-1].trading.get("trades", 1.0) if excess.per == "trade" else 1.0)
    if fitness <= error or validation + max(width, luck) >= _VALIDATION_SHARE * fitness:
        return None
    return (
        "The agents mostly fit the training episodes: from the first to the last third of generations the mean fitness "
        f"changed by {_interval(fitness, error)}, the mean validation by {_interval(validation, width)}. Use more days "
        "or symbols, or more weight decay, for example --set learner.weight_decay=1 or, if it has that, 10."
    )


def _idle(late: Records) -> str | None:
    played = [(record.trading.get("trades", np.inf), record.trading.get("idle_days", 0.0)) for record in late]
    if any(trades >= _TRADES_OF_AN_IDLE_DAY * idle for trades, idle in played):
        return None
    trades, idle = np.mean(played, axis=0)
    return (
        f"The agents hardly trade: {trades:.1f} trades in an episode with {idle:.0f} idle days, in the last third of "
        "generations. Let idle days cost, or losses count less, for example --set trading.idle_penalty=1."
    )


def _one_ancestor(late: Records) -> str | None:
    mutation = late[-1].evolution.get("mutation_std")
    differ = [record.policy_distance for record in late if record.policy_distance is not None]
    one = all(record.distinct_ancestors == 1 for record in late)
    if mutation is None or not one or len(differ) < len(late) or max(differ) >= _ALIKE:
        return None
    std = max(0.1, 2.0 * mutation)
    return (
        f"All agents descend from one of the first {len(late[-1].fitness)} and act alike (their actions differ by "
        f"{percent(max(differ))} of the range at most): evolution has nothing to choose from. Mutate more, for example "
        f"--set evolution.mutation_std={std:g} --set evolution.mutation_std_limit={std:g}."
    )


def _ridge_alone(late: Records) -> str | None:
    gates = [record.learning["gate"] for record in late if record.learning is not None and "gate" in record.learning]
    if not gates or max(gates) >= _SHUT:
        return None
    return (
        "The agents trade as the ridge regression does with which they began: days from which their networks have not "
        f"learned confirm nothing of what these add (gate {max(gates):.2f} at most, in the last third of generations)."
    )


def _noise_at_its_floor(early: Records, late: Records) -> str | None:
    noise = late[-1].noise_scale
    # Stochastic policies have an entropy, and draw their noise themselves.
    curves = late[-1].learning or {}
    explores = "critic_loss" in curves and "entropy" not in curves
    at_floor = late[0].noise_scale == noise < early[0].noise_scale and noise <= _LITTLE_NOISE
    if not (explores and at_floor):
        return None
    return (
        f"Exploration noise has been at its floor, {percent(noise)} of the range, for {len(late)} generations, and no "
        "better champion was found. Explore more, for example --set exploration.minimum=0.05."
    )
