"""Accounts one after another and side by side, against accounts that are kept day by day."""

import numpy as np
import pandas as pd
import pytest
from equity_cases import CAPITAL, curve_of

from eigen_core.trading import EquityCurve
from eigen_core.trading.equity import concat_curves, mean_curve


def random_curve(first: str, days: int, seed: int) -> EquityCurve:
    generator = np.random.default_rng(seed)
    returns = pd.Series(0.01 * generator.standard_normal(days), index=pd.bdate_range(first, periods=days))
    return curve_of(returns, exposure=generator.random(days), traded=100.0 * generator.random(days))


def test_capital_is_carried_from_span_to_span() -> None:
    spans = [random_curve("2020-01-01", 30, 1), random_curve("2020-03-02", 20, 2), random_curve("2020-05-01", 10, 3)]
    joined = concat_curves(spans)
    assert joined.capital == CAPITAL
    np.testing.assert_allclose(joined.returns, np.concatenate([span.returns for span in spans]), rtol=0.0, atol=1e-14)
    np.testing.assert_array_equal(joined.dates, np.concatenate([span.dates for span in spans]))
    money, day = CAPITAL, 0
    for span in spans:
        begun = money
        for place in range(len(span.dates)):
            money *= 1.0 + span.returns[place]
            assert joined.equity[day] == pytest.approx(money, rel=1e-12)
            assert joined.traded[day] == pytest.approx(span.traded[place] * begun / CAPITAL)
            assert joined.exposure[day] == span.exposure[place]
            day += 1
    with pytest.raises(ValueError, match="order of their days"):
        concat_curves([spans[1], spans[0]])


def test_a_share_of_the_capital_is_in_each_account() -> None:
    curves = [random_curve("2020-01-01", 30, seed) for seed in (1, 2, 3)]
    mean = mean_curve(curves)
    for day in range(30):
        assert mean.equity[day] == pytest.approx(sum(curve.equity[day] for curve in curves) / 3.0)
        invested = sum(curve.equity[day] * curve.exposure[day] for curve in curves) / 3.0
        assert mean.exposure[day] * mean.equity[day] == pytest.approx(invested)
    np.testing.assert_allclose(mean_curve(curves[:1]).equity, curves[0].equity)
