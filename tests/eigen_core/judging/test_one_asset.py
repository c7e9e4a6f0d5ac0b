"""One asset is judged by when it was held: whoever knows the coming days has skill, at other times as at none."""

import numpy as np
import pytest
import torch
from trading_cases import panel_of

from eigen_core.config import Config
from eigen_core.judging.backtest import MarketBacktest, PortfolioBacktest, SpanResult
from eigen_core.judging.verdicts import verdict_on
from eigen_core.learning import learner_class
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.population import initial_weights
from eigen_core.trading.portfolio import target_weights

DAYS = 500
SPAN = range(150, 450)
CONFIG = Config.model_validate({"trading": {"holding_days": 5, "settlement_days": 5}, "market": {"window": 64}})
RETURNS = np.random.default_rng(5).normal(0.0004, 0.01, DAYS)
CLOSES = 100.0 * np.exp(np.cumsum(RETURNS))[:, None]
PANEL = panel_of(CLOSES, CLOSES, CLOSES)


def played(scores: np.ndarray) -> SpanResult:
    """A portfolio whose share of the asset follows scores, a day each."""
    weights = target_weights(torch.tensor(scores[:, None]), torch.ones(DAYS, 1, dtype=torch.bool)).numpy()
    market, own = PortfolioBacktest(CONFIG, PANEL, torch.device("cpu")), weights[None, SPAN.start : SPAN.stop]
    return market.played(own, 1, SPAN, market.accounts(own, SPAN).curve(0), "champion", draws=1_000)


def knowing(share: float) -> np.ndarray:
    """Scores that correlate so much with the mean return of two days after the fill."""
    coming = np.convolve(np.append(RETURNS[2:], [0.0, 0.0]), [0.5, 0.5], mode="same")
    noise = np.random.default_rng(6).normal(0.0, coming.std(), DAYS)
    mixed: np.ndarray = (share * coming + (1.0 - share**2) ** 0.5 * noise) / coming.std()
    return mixed


def test_who_knows_the_coming_days_of_one_asset_has_skill_and_chance_has_none() -> None:
    found = played(knowing(0.6))
    verdict = verdict_on(found, CONFIG)
    assert found.by_timing
    assert len(found.matched.total_returns) == len(SPAN) - 2 * 5 - 1
    assert verdict.claim == "skill", verdict.sentence
    # The same knowledge of a week ago.
    late = verdict_on(played(np.roll(knowing(0.6), 25)), CONFIG)
    assert late.claim != "skill"
    # A look among many needs more.
    assert verdict_on(found, CONFIG, looks=1_000).claim != "skill"


def test_a_constant_share_of_one_asset_is_no_timing() -> None:
    found = played(np.full(DAYS, 0.5))
    assert found.excess is not None
    assert found.excess.mean == pytest.approx(0.0, abs=0.05)
    assert verdict_on(found, CONFIG).claim == "none"


def test_trades_of_one_asset_are_judged_by_their_times_too() -> None:
    cpu = torch.device("cpu")
    network = AgentNetwork(PANEL, CONFIG, cpu, learner_class(CONFIG.learner).heads(CONFIG))
    agents = initial_weights(network.layouts, 2, CONFIG.seed, cpu)
    found = MarketBacktest(CONFIG, PANEL, cpu).play(agents, SPAN, "agents", draws=50)
    assert found.by_timing
    assert found.matched is found.timing
    assert len(found.timing.total_returns) == 50
    assert verdict_on(found, CONFIG).claim in ("none", "undecided")
