"""What a user hears of rules that do not go with the data."""

import pytest
from science_cases import small_config

from eigen_core.market.facts import PanelFacts
from eigen_core.task.market import MarketTask
from eigen_core.task.portfolio import PortfolioTask


@pytest.mark.parametrize(
    ("purchases", "assets", "cautions"), [(1, 4, 1), (1, 5, 1), (1, 6, 0), (3, 6, 1), (3, 15, 1), (3, 16, 0)]
)
def test_a_market_with_too_few_assets_to_choose_among_is_named(purchases: int, assets: int, cautions: int) -> None:
    config = small_config(trading={"holding_days": 5, "settlement_days": 5, "purchases_per_day": purchases})
    facts = PanelFacts(days=400, columns=20, assets=assets, features=4)
    found = MarketTask.cautions(config, facts)
    assert len(found) == cautions
    assert all(f"any of {assets} assets" in sentence and "trading.holding_days" in sentence for sentence in found)
    assert all(("trading.purchases_per_day" in sentence) == (purchases > 1) for sentence in found)
    assert not PortfolioTask.cautions(config, facts)
