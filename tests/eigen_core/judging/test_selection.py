"""The statistics of a choice among trials: what is luck is called luck, and what is better is found."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from known import known

from eigen_core.common.errors import InputError
from eigen_core.judging.choice import Choice
from eigen_core.judging.cross_validation import Paths
from eigen_core.judging.selection import (
    Overfitting,
    deflated_sharpe_of,
    mean_correlation,
    model_confidence_set,
    probability_of_overfitting,
)
from eigen_core.judging.statistics import Values, deflated_sharpe, minimum_track_record, sharpe_ratio
from eigen_core.judging.sweeps import TrialResult


def best_deflated(returns: Values) -> float | None:
    return deflated_sharpe_of(int(np.argmax([sharpe_ratio(trial) or 0.0 for trial in returns.T])), returns)


def noise(seed: int, bars: int = 250, trials: int = 10, common: float = 0.0) -> Values:
    """Returns without skill, whose correlation is `common`."""
    random = np.random.default_rng(seed)
    alike, own = random.normal(size=(bars, 1)), random.normal(size=(bars, trials))
    returns: Values = 0.01 * (np.sqrt(common) * alike + np.sqrt(1.0 - common) * own)
    return returns


def with_best(returns: Values, trial: int, edge: float = 0.01) -> Values:
    better = returns.copy()
    better[:, trial] += edge
    return better


def overfitting(returns: Values, blocks: int = 8) -> Overfitting:
    return known(probability_of_overfitting(returns, blocks))


def slow_overfitting(returns: Values, blocks: int) -> list[tuple[float, float, float]]:
    """The logit and the two Sharpe ratios of each way to halve the bars."""
    bars, trials = returns.shape
    block = [max(number for number in range(blocks) if bars * number // blocks <= bar) for bar in range(bars)]
    ways = []
    for chosen in combinations(range(blocks), blocks // 2):
        half = np.array([number in chosen for number in block])
        inside, outside = (
            [round(sharpe_ratio(returns[bars_of, trial]) or 0.0, 12) for trial in range(trials)]
            for bars_of in (half, ~half)
        )
        best = [trial for trial in range(trials) if inside[trial] == max(inside)]
        ranks = [sum(ratio < one for ratio in outside) + (outside.count(one) + 1) / 2 for one in outside]
        rank = np.mean([ranks[trial] for trial in best])
        logit = float(np.log(rank / (trials + 1 - rank)))
        ways.append((logit, max(inside), float(np.mean([outside[trial] for trial in best]))))
    return ways


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    bars=st.integers(24, 50),
    blocks=st.sampled_from([2, 4, 6]),
    kinds=st.lists(st.sampled_from(["own", "same", "thrice", "cash", "constant", "late"]), min_size=2, max_size=6),
)
def test_overfitting_is_that_of_a_slow_version(seed: int, bars: int, blocks: int, kinds: list[str]) -> None:
    own, same = noise(seed, bars, len(kinds)), noise(seed + 1, bars, 1)[:, 0]
    late = own * (np.arange(bars) >= 0.6 * bars)[:, None]
    made = {"same": same, "thrice": 3.0 * same, "cash": np.zeros(bars), "constant": np.full(bars, 0.001)}
    columns = [made.get(kind, (late if kind == "late" else own)[:, trial]) for trial, kind in enumerate(kinds)]
    returns = np.stack(columns, axis=1)
    found, expected = overfitting(returns, blocks), slow_overfitting(returns, blocks)
    assert np.stack([found.logits, found.inside, found.outside], axis=1) == pytest.approx(np.array(expected), abs=1e-9)
    below = [1.0 if logit < 0.0 else 0.5 if logit == 0.0 else 0.0 for logit, _, _ in expected]
    assert found.probability == pytest.approx(np.mean(below))


def test_overfitting_without_skill_is_even_and_that_of_a_better_trial_is_none() -> None:
    for trials in (2, 3, 10):
        found = [overfitting(noise(seed, trials=trials)).probability for seed in range(80)]
        # Its deviation from table to table is some 0.27.
        assert np.mean(found) == pytest.approx(0.5, abs=0.09)
    for trial in (0, 4, 9):
        better = overfitting(with_best(noise(trial), trial))
        assert better.probability == 0.0
        assert len(better.logits) == 70
        assert better.logits == pytest.approx(np.full(70, np.log(10.0)))
        assert min(better.outside) > 0.5


def test_trials_that_earn_in_one_block_each_are_overfitted() -> None:
    lucky = np.repeat(np.eye(8), 30, axis=0) * 0.08 - 0.01
    found = overfitting(lucky + 0.1 * noise(0, 240, 8))
    assert found.probability == 1.0
    assert min(found.inside) > 0.0 > max(found.outside)


def test_the_order_of_trials_does_not_matter_and_equal_trials_share_their_ranks() -> None:
    returns = np.concatenate([noise(1, trials=4), np.zeros((250, 2)), noise(1, trials=2)], axis=1)
    order = np.random.default_rng(0).permutation(8)
    for one, other in zip(
        vars(overfitting(returns)).values(), vars(overfitting(returns[:, order])).values(), strict=True
    ):
        assert np.array_equal(one, other)
    for equal in (np.zeros((60, 3)), np.repeat(noise(2, 60, 1), 3, axis=1)):
        assert overfitting(equal).probability == 0.5
        assert not overfitting(equal).logits.any()


def test_what_cannot_be_compared_is_refused_or_undefined() -> None:
    for blocks in (0, -2, 7, 18):
        with pytest.raises(InputError, match=f"{blocks} blocks"):
            probability_of_overfitting(noise(0), blocks)
    assert probability_of_overfitting(noise(0, trials=1)) is None
    assert probability_of_overfitting(noise(0, bars=31)) is probability_of_overfitting(noise(0, bars=19), 2) is None
    assert overfitting(noise(0, bars=32), 16).logits.shape == (12_870,)
    damaged = noise(0)
    damaged[7, 9] = np.nan
    for compare in (
        probability_of_overfitting,
        mean_correlation,
        lambda returns: deflated_sharpe_of(0, returns),
        lambda returns: model_confidence_set(returns, 0),
    ):
        with pytest.raises(InputError, match="trial 9 "):
            compare(damaged)


def returns_with(ratio: float, skewness: float, kurtosis: float, bars: int) -> Values:
    """Three returns, each so often that together they have these moments, but for the rounding of counts."""
    root = np.sqrt(4.0 * kurtosis - 3.0 * skewness**2)
    low, high = (skewness - root) / 2.0, (skewness + root) / 2.0
    lows, highs = round(bars / (low * (low - high))), round(bars / (high * (high - low)))
    values = np.repeat([low, 0.0, high], [lows, bars - lows - highs, highs])
    returns: Values = 0.01 * ((values - values.mean()) / values.std(ddof=1) + ratio)
    return returns


@pytest.mark.parametrize(
    ("skewness", "kurtosis", "looks", "published"), [(-3, 10, 100, 0.9004), (-3, 10, 46, 0.9505), (0, 3, 88, 0.9505)]
)
def test_deflated_ratios_are_those_published(skewness: float, kurtosis: float, looks: int, published: float) -> None:
    # Bailey and Lopez de Prado 2014, "A numerical example": annualised, the ratio is 2.5 and the trials' variance 1/2.
    excess = returns_with(2.5 / np.sqrt(250), skewness, kurtosis, 1_250)
    deviation = np.sqrt(0.5 / 250)
    others = [-deviation / np.sqrt(2.0), deviation / np.sqrt(2.0)]
    assert known(deflated_sharpe(excess, looks, others)) == pytest.approx(published, abs=3e-4)


@pytest.mark.parametrize(
    ("bars_a_year", "skewness", "kurtosis", "published"),
    [(250, 0, 3, 2.73), (52, 0, 3, 2.83), (12, 0, 3, 3.24), (12, -0.72, 5.78, 4.99)],
)
def test_track_records_are_those_published(
    bars_a_year: int, skewness: float, kurtosis: float, published: float
) -> None:
    # Bailey and Lopez de Prado 2012: years that show an annualised ratio of 2 to be above 1.
    excess = returns_with(2.0 / np.sqrt(bars_a_year), skewness, kurtosis, 100_000)
    assert minimum_track_record(excess, 1.0 / np.sqrt(bars_a_year)) == np.ceil(published * bars_a_year)


def test_as_many_bars_show_the_ratio_and_fewer_do_not() -> None:
    excess = returns_with(0.1, -0.5, 5.0, 20_000)
    bars = known(minimum_track_record(excess))
    enough, too_few = (
        known(deflated_sharpe(returns_with(0.1, -0.5, 5.0, days), 1))
        for days in (round(1.05 * bars), round(0.95 * bars))
    )
    assert too_few < 0.95 < enough
    assert minimum_track_record(excess, 0.1001) is minimum_track_record(-excess) is None
    assert minimum_track_record(np.zeros(100)) is minimum_track_record(excess[:9]) is None


def test_the_mean_correlation_is_that_of_all_pairs() -> None:
    assert mean_correlation(np.repeat(noise(0, trials=1), 7, axis=1)) == pytest.approx(1.0)
    assert mean_correlation(noise(0, 50_000, 9, common=0.5)) == pytest.approx(0.5, abs=0.02)
    assert mean_correlation(np.zeros((50, 3))) == mean_correlation(noise(0, trials=1)) == 0.0
    opposite = noise(0, trials=1)
    assert mean_correlation(np.concatenate([opposite, -opposite], axis=1)) == 0.0
    returns = noise(3, 40, 6, common=0.3)
    pairs = [np.corrcoef(returns[:, one], returns[:, other])[0, 1] for one, other in combinations(range(6), 2)]
    assert mean_correlation(returns) == pytest.approx(np.mean(pairs))
    # Trials that never trade are related to none.
    padded = np.concatenate([np.zeros((40, 2)), returns], axis=1)
    assert mean_correlation(padded) == pytest.approx(np.sum(pairs) / 28)


def test_the_best_of_many_is_deflated_by_trials_that_differ() -> None:
    best = noise(5, 1_000, 1)[:, 0]
    best += 0.1 * best.std() - best.mean()
    alone = known(deflated_sharpe(best, 1))
    assert known(best_deflated(np.repeat(best[:, None], 20, axis=1))) == pytest.approx(alone)
    others = noise(6, 1_000, 19)
    chosen = known(best_deflated(np.column_stack([others, best])))
    ratios = [known(sharpe_ratio(trial)) for trial in [*others.T, best]]
    assert chosen == pytest.approx(known(deflated_sharpe(best, 20, ratios)), abs=0.005)
    assert chosen < 0.95 < alone
    assert best_deflated(noise(0, bars=9)) is best_deflated(np.zeros((50, 2))) is None


@pytest.mark.parametrize("common", [0.0, 0.5, 0.9, 0.99])
def test_the_best_by_luck_is_seldom_called_better(common: float) -> None:
    found = [known(best_deflated(noise(seed, 300, 10, common))) for seed in range(300)]
    assert np.mean(np.array(found) > 0.95) <= 0.06


def choice_of(returns: Values) -> Choice:
    dates = np.datetime64("2024-01-01") + np.arange(len(returns))
    played = [Paths(dates, trial[None], 0.0 * trial[None], trial[None], 252, 0.0) for trial in returns.T]
    ratios = [known(sharpe_ratio(trial)) for trial in returns.T]
    results = [
        TrialResult(number, "finished", {}, {}, None, (ratio,), paths, front=False)
        for number, (ratio, paths) in enumerate(zip(ratios, played, strict=True))
    ]
    return known(Choice.among(sorted(results, key=lambda one: -ratios[one.number]), 0))


def test_skill_is_found_where_all_trials_have_it_and_none_is_the_best_one_again() -> None:
    alike = noise(6, 2_000, 6, common=0.95)
    assert choice_of(alike).claim == "none"
    found = choice_of(alike + 0.001)
    assert found.claim == "skill"
    assert known(found.overfitting).probability > 0.5


def test_the_confidence_set_leaves_out_what_is_worse() -> None:
    assert model_confidence_set(with_best(noise(1), 9), 0) == (9,)
    # Two trials are equal and better, and one is worse than the rest.
    returns = with_best(with_best(noise(2, 1_000, 6), 0, 0.002), 3, -0.002)
    returns[:, 5] = returns[:, 0]
    found = model_confidence_set(returns, 7)
    assert {0, 5} <= set(found)
    assert 3 not in found
    assert found == model_confidence_set(returns.copy(), 7)
    order = np.array([5, 3, 1, 0, 2, 4])
    assert {int(order[trial]) for trial in model_confidence_set(returns[:, order], 7)} == set(found)


def test_the_seed_decides_what_is_drawn_for_the_confidence_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.judging.selection._DRAWS", 20)
    returns = noise(3, 200, 12) + np.linspace(0.0, 0.003, 12)
    sets = [model_confidence_set(returns, seed) for seed in range(20)]
    assert sets == [model_confidence_set(returns, seed) for seed in range(20)]
    assert len(set(sets)) > 1


def test_trials_that_cannot_differ_are_all_in_the_confidence_set() -> None:
    same = np.repeat(noise(0, trials=1), 4, axis=1)
    too_few = with_best(noise(0, 9, 4), 2, 0.1)
    for equal in (np.zeros((50, 4)), np.zeros((9, 4)), same, with_best(same, 2, 1e-14), too_few):
        assert model_confidence_set(equal, 0) == (0, 1, 2, 3)
    assert model_confidence_set(noise(0, trials=1), 0) == (0,)


def test_the_confidence_set_holds_the_best_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.judging.selection._DRAWS", 200)
    sets = [model_confidence_set(with_best(noise(seed, 200, 5), 2, 0.0005), seed) for seed in range(60)]
    # Of 60 sets of 95 %, fewer than 51 are rarer than 1 in 500.
    assert sum(2 in one for one in sets) >= 51
    # With so small an edge, most sets cannot leave out the others.
    assert np.mean([len(one) for one in sets]) > 4.0


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_trials_that_are_almost_one_are_judged_as_one(noise: float) -> None:
    generator = np.random.default_rng(8)
    one = generator.normal(0.02, 1.0, (2_000, 1))
    trials = one + noise * generator.normal(0.0, 1.0, (2_000, 4))
    alone, best = deflated_sharpe(trials[:, 0], 1), best_deflated(trials)
    assert alone is not None
    assert best is not None
    assert best <= alone + 0.05
    assert (best >= 0.95) == ((minimum_track_record(trials[:, 0]) or 10**9) <= 2_000)
