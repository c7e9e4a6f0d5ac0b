"""The target weights that agents decide on over a span of days."""

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config

from eigen_core.judging.portfolio import decide_weights
from eigen_core.networks import AgentNetwork, Heads, portfolio_actions
from eigen_core.networks.population import initial_weights

CPU = torch.device("cpu")


@pytest.mark.parametrize("observe", [True, False])
def test_agents_decide_on_weights_of_what_has_a_price(observe: bool) -> None:
    config = small_config(trading={"observe_portfolio": observe})
    panel, span = random_panel(config), range(30, 70)
    network = AgentNetwork(panel, config, CPU, Heads(), portfolio_actions(config, CPU))
    rows = initial_weights(network.layouts, 3, config.seed, CPU)
    decided = decide_weights(network, panel, config, rows, span)
    assert decided.shape == (3, 40, panel.assets)
    priced = ~np.isnan(panel.close[span.start : span.stop])
    assert ((decided > 0.0) == priced).all()
    assert (decided.sum(-1) < 1.0).all()
    together = decide_weights(network, panel, config, rows, span, ensemble=True)
    assert together.shape == (1, 40, panel.assets)
    alone = decide_weights(network, panel, config, rows[:1], span, ensemble=True)
    np.testing.assert_allclose(alone[0], decided[0], atol=1e-6)
    alike = decide_weights(network, panel, config, rows[:1].expand(4, -1), span, ensemble=True)
    np.testing.assert_allclose(alike, alone, atol=1e-6)
    assert not np.allclose(together, alone, atol=1e-6)
