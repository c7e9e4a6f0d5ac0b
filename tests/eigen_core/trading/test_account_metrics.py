"""The figures, equity and excess of accounts, beside quantstats where definitions agree, and by hand."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from known import known
from numpy.typing import NDArray
from trading_cases import CAPITAL, Array, curve_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import AccountConfig, Config
from eigen_core.market import build_panel
from eigen_core.task import open_data
from eigen_core.trading.equity import EquityCurve, concat_curves, mean_curve, periods_per_year
from eigen_core.trading.excess import alpha_of, alpha_of_days, excess_of_days, mean_excess
from eigen_core.trading.metrics import compute_metrics

P = 252
RISK_FREE = 0.02
DAYS = pd.bdate_range("2015-01-01", periods=600)


def _series() -> dict[str, np.ndarray]:
    """Returns of different kinds: calm, fat-tailed, mostly idle, always falling, alternating."""
    draw = keyed_generator(5, 0, "test", 0, "returns")
    normal, tails = draw.normal(0.0004, 0.01, 600), 0.008 * draw.standard_t(3, 600)
    idle = np.where(draw.random(600) < 0.7, 0.0, normal)
    return {
        "normal": normal,
        "fat tails": np.clip(tails, -0.3, 0.3),
        "idle": idle,
        "falling": -np.abs(normal) - 1e-4,
        "short": normal[:30],
        "wins and losses": np.tile([0.02, -0.01], 100),
    }


SERIES = _series()


@pytest.fixture(scope="module")
def quantstats() -> Any:
    """It takes a second to import: only in the process that runs these tests."""
    from quantstats import stats

    return stats


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("risk_free", [0.0, RISK_FREE])
def test_figures_are_those_of_quantstats_where_definitions_agree(quantstats: Any, name: str, risk_free: float) -> None:
    returns = pd.Series(SERIES[name], index=DAYS[: len(SERIES[name])])
    benchmark = pd.Series(SERIES["normal"][::-1][: len(returns)], index=returns.index)
    found = compute_metrics(curve_of(returns), curve_of(benchmark), periods_per_year=P, risk_free=risk_free)
    elapsed = np.diff(returns.index, prepend=returns.index[:1]) / pd.Timedelta(days=365.25)
    daily = (1.0 + risk_free) ** elapsed - 1.0
    excess, beta = returns - daily, quantstats.greeks(returns, benchmark, periods=P)["beta"]
    expected = {
        "total_return": quantstats.comp(returns),
        "cagr": quantstats.cagr(returns, periods=P),
        "volatility": quantstats.volatility(returns, periods=P),
        # Their risk-free rate is the same on all days; this one goes by calendar time.
        "sharpe": quantstats.sharpe(excess, periods=P),
        "sortino": quantstats.sortino(excess, periods=P),
        "calmar": quantstats.calmar(returns, periods=P),
        "max_drawdown": quantstats.max_drawdown(returns),
        "expected_shortfall": quantstats.conditional_value_at_risk(returns, method="historical"),
        "win_days": quantstats.win_rate(returns),
        "beta": beta,
        # Theirs is not in excess of the risk-free rate.
        "alpha": (excess - beta * (benchmark - daily)).mean() * P,
        # Theirs is of a day; theirs divides by N - 1.
        "information_ratio": quantstats.information_ratio(returns, benchmark) * np.sqrt(P),
        "ulcer_index": quantstats.ulcer_index(returns) * np.sqrt((len(returns) - 1) / len(returns)),
    }
    assert {key: asdict(found)[key] for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)
    if name in ("normal", "fat tails"):
        # Theirs differs by the bias of the moments.
        assert found.probabilistic_sharpe == pytest.approx(quantstats.probabilistic_sharpe_ratio(excess), abs=1e-3)
        details = quantstats.drawdown_details(quantstats.to_drawdown_series(returns))
        assert found.longest_drawdown_days == details["days"].max()


def test_exposure_and_trades_give_time_in_market_and_turnover() -> None:
    days = pd.Series([0.1, 0.0, 0.0, -0.1], index=DAYS[:4])
    curve = curve_of(days, exposure=np.array([0.5, 0.0, 0.25, 0.25]), traded=np.array([50.0, 0.0, 20.0, 0.0]))
    found = compute_metrics(curve, periods_per_year=P)
    assert found.time_in_market == 0.75
    assert found.turnover == pytest.approx(70.0 / curve.equity.mean() * P / 4)


def test_what_is_undefined_is_none() -> None:
    idle = curve_of(pd.Series(np.zeros(10), index=DAYS[:10]))
    found = compute_metrics(idle, idle, periods_per_year=P)
    undefined = {key for key, value in asdict(found).items() if value is None}
    ratios = {"sharpe", "probabilistic_sharpe", "sortino", "calmar", "win_days", "beta", "alpha", "information_ratio"}
    assert undefined == ratios
    assert found.volatility == 0.0
    single = compute_metrics(curve_of(pd.Series([0.01], index=DAYS[:1])), periods_per_year=P)
    assert single.total_return == pytest.approx(0.01)
    assert single.volatility is single.sharpe is None
    # Interest alone, of each day or by calendar time.
    weekdays = pd.Series(np.expm1(np.diff(DAYS, prepend=DAYS[:1]) / pd.Timedelta(days=1) * 1e-4), index=DAYS)
    for interest in (pd.Series(np.full(600, 0.02 / P), index=DAYS), weekdays):
        assert compute_metrics(curve_of(interest), periods_per_year=P).sharpe is None


def test_an_account_that_has_lost_all_has_figures() -> None:
    found = compute_metrics(curve_of(pd.Series([0.1, -1.0, 0.0, 0.0], index=DAYS[:4])), periods_per_year=P)
    assert (found.total_return, found.cagr, found.max_drawdown) == (-1.0, -1.0, -1.0)
    assert found.longest_drawdown_days == (DAYS[3] - DAYS[1]).days + 1
    assert found.expected_shortfall == -1.0
    assert found.sharpe is not None
    assert found.sharpe < 0.0
    assert found.turnover >= 0.0
    at_once = compute_metrics(curve_of(pd.Series([-1.0, 0.0], index=DAYS[:2])), periods_per_year=P)
    assert (at_once.total_return, at_once.turnover) == (-1.0, 0.0)


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
    np.testing.assert_allclose(joined.equity, CAPITAL * np.cumprod(1.0 + joined.returns), rtol=1e-12)
    np.testing.assert_array_equal(joined.exposure, np.concatenate([span.exposure for span in spans]))
    begun = np.cumprod([1.0, *(span.equity[-1] / CAPITAL for span in spans[:-1])])
    traded = np.concatenate([span.traded * grown for span, grown in zip(spans, begun, strict=True)])
    np.testing.assert_allclose(joined.traded, traded)
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


FROM_DATA = AccountConfig()
EVERY_DAY = pd.date_range("2016-01-01", "2023-12-31")
WEEKDAYS = pd.bdate_range("2010-01-01", "2023-12-31")


def days(*parts: pd.DatetimeIndex) -> NDArray[np.datetime64]:
    return np.concatenate([part.to_numpy().astype("datetime64[D]") for part in parts])


@pytest.mark.parametrize("data", [None, "us5"])
def test_bundled_stocks_have_252_days_a_year_whichever_days_are_judged(data: str | None) -> None:
    dates = build_panel(Config.model_validate({"market": {"data": data}}))[0].dates
    found = {
        periods_per_year(dates, FROM_DATA, range(first, min(first + length, len(dates))))
        for first in range(50, len(dates) - 20, 41)
        for length in (20, 60, 251, 1_300)
    }
    assert found | {periods_per_year(dates, FROM_DATA)} == {252}


STOCKS, COINS = pd.bdate_range("2010-01-01", "2018-12-31"), pd.date_range("2019-01-01", "2023-12-31")


@pytest.mark.parametrize(
    ("dates", "span", "year"),
    [
        (days(EVERY_DAY), None, 365),
        (days(EVERY_DAY[:1000], EVERY_DAY[1400:]), None, 365),
        # One day in twenty is missing everywhere.
        (np.delete(days(EVERY_DAY), np.s_[::20]), None, 346),
        # Coins join stocks: the calendar is that of the days that are judged.
        (days(STOCKS, COINS), None, 365),
        (days(STOCKS, COINS), range(len(STOCKS) + len(COINS) - 251, len(STOCKS) + len(COINS)), 365),
        (days(STOCKS, COINS), range(900, 1_151), 261),
        # They joined 500 days ago: five years would have 308 days each.
        (days(STOCKS, COINS[:500]), None, 365),
        (days(STOCKS, COINS[:500]), range(len(STOCKS) + 249, len(STOCKS) + 500), 365),
        (days(EVERY_DAY[EVERY_DAY.year < 2020], WEEKDAYS[WEEKDAYS.year > 2019][:500]), None, 261),
        (days(pd.date_range("2010-01-01", "2023-12-31", freq="W")), None, 52),
        (days(pd.date_range("2010-01-01", "2023-12-31", freq="ME")), None, 12),
        # An exchange that is closed for two weeks at a time, twice a year.
        (days(WEEKDAYS[~(WEEKDAYS.month.isin([2, 10]) & (WEEKDAYS.day <= 12))]), None, 244),
    ],
)
def test_a_year_has_the_days_of_its_calendar(dates: NDArray[np.datetime64], span: range | None, year: int) -> None:
    assert periods_per_year(dates, FROM_DATA, span) == year


def test_a_setting_goes_before_the_data_and_the_data_report_says_how_many(tmp_path: Path) -> None:
    random = np.random.default_rng(0).normal(0.0, 0.02, (900, 2))
    table = pd.DataFrame(np.exp(np.cumsum(random, axis=0)), index=EVERY_DAY[:900], columns=["BTC", "ETH"])
    path = tmp_path / "coins.csv"
    table.to_csv(path, index_label="date")
    for settings, year in ({}, 365), ({"periods_per_year": 360}, 360):
        config = Config.model_validate({"market": {"data": str(path), "layout": "wide"}, "account": settings})
        assert any(f"A year has {year} trading days" in line for line in open_data(config).lines)


def sum_of_pairs(values: Array, day: NDArray[np.int64], lags: int) -> float:
    """The products of all pairs of observations, weighted by the days between them."""
    weights = np.maximum(0.0, 1.0 - np.abs(day[:, None] - day) / (lags + 1))
    return float(values @ weights @ values)


@pytest.mark.parametrize("starts", [[0, 11, 22], [7, 7, 300], [90, 40, 0]])
def test_mean_and_error_are_those_of_all_pairs_of_days(starts: list[int]) -> None:
    random = np.random.default_rng(starts)
    excess, bought = random.normal(0.01, 0.05, (3, 25)), random.random((3, 25)) < 0.6
    found = known(mean_excess(np.where(bought, excess, 0.0), bought.astype(np.float64), np.array(starts), lags=7))
    assert found.trades == bought.sum()
    assert found.mean == pytest.approx(100.0 * excess[bought].mean(), rel=1e-12)
    day = (np.array(starts)[:, None] + np.arange(25))[bought]
    error = sum_of_pairs(excess[bought] - excess[bought].mean(), day, 7) ** 0.5 / bought.sum()
    assert found.standard_error == pytest.approx(100.0 * error, rel=1e-9)


def test_alpha_is_the_intercept_of_the_excess_on_the_market_with_the_error_of_all_pairs() -> None:
    random = np.random.default_rng(1)
    day = np.sort(random.integers(0, 90, 70))
    market, excess = random.normal(0.01, 0.03, 70), random.normal(0.002, 0.02, 70)
    slope, intercept = np.polyfit(market, excess, 1)
    of_intercept = 1.0 / 70 - market.mean() * (market - market.mean()) / ((market - market.mean()) ** 2).sum()
    error = sum_of_pairs(of_intercept * (excess - slope * market - intercept), day, 6) ** 0.5
    found, of_year = known(alpha_of(excess, market, day, 6)), known(alpha_of(excess, market, day, 6, 252.0))
    assert (found.mean, found.standard_error) == pytest.approx((100.0 * intercept, 100.0 * error))
    assert (found.trades, found.per, of_year.per) == (70, "trade", "year")
    assert of_year.mean == pytest.approx(252.0 * found.mean)
    # Neither few trades nor a market that does not move have one.
    assert alpha_of(excess[:9], market[:9], day[:9], 1) is None
    assert alpha_of_days(excess, np.full(70, 0.01), 252.0) is None


def test_the_excess_of_a_year_is_the_mean_difference_of_days_with_the_lags_of_newey_and_west() -> None:
    returns, benchmark = np.random.default_rng(3).normal(0.001, 0.01, (2, 251))
    difference = (returns - benchmark)[None]
    expected = known(mean_excess(difference, np.ones((1, 251)), np.array([0]), lags=4, periods_per_year=252))
    assert excess_of_days(returns, benchmark, 252) == expected
    assert (expected.trades, expected.per) == (251, "year")
    assert expected.mean == pytest.approx(252 * 100.0 * difference.mean())
    assert excess_of_days(np.zeros(1), np.zeros(1), 252) is None


def test_the_interval_is_wider_where_trades_are_of_few_stretches_of_days() -> None:
    excess, number = np.zeros((1, 120)), np.zeros((1, 120))
    traded = [0, 1, 2, 60, 61, 100]
    number[0, traded], excess[0, traded] = 1.0, [0.1, -0.2, 0.3, 0.1, 0.0, -0.1]
    found = known(mean_excess(excess, number, np.array([5]), lags=20))
    # Three stretches: Student's t with two degrees of freedom.
    assert found.interval[1] - found.mean == pytest.approx(4.303 * 1.5**0.5 * found.standard_error, rel=1e-3)
