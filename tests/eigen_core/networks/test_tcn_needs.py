"""What the encoder `tcn` says of its memory, against the bytes of all tensors that live while it computes."""

import pytest
import torch
from live_tensors import LiveTensors

from eigen_core.config import Config
from eigen_core.market import PanelFacts
from eigen_core.networks import ParameterLayout
from eigen_core.networks.encoders.tcn import TcnEncoder

_FEATURES, _DAYS, _FIRST_DAY = 5, 200, 60


@pytest.mark.parametrize("wanted", [None, 24, 4], ids=["all days", "half of the days", "few days"])
@pytest.mark.parametrize(
    ("window", "days", "columns", "chunk", "agents"), [(20, 50, 32, 0, 3), (64, 50, 33, 8, 2), (2, 50, 32, 0, 4)]
)
def test_what_it_holds_is_planned(
    window: int, days: int, columns: int, chunk: int, agents: int, wanted: int | None
) -> None:
    config = Config.model_validate(
        {"market": {"window": window}, "network": {"encoder": "tcn", "column_chunk": chunk, "scales": [1]}}
    )
    encoder = TcnEncoder(torch.ones(_DAYS, columns, _FEATURES), 0, window, config.network)
    layout = ParameterLayout(tuple(encoder.shapes))
    rows = torch.ones(agents, layout.size).requires_grad_()
    picked = None if wanted is None else (_FIRST_DAY + torch.arange(wanted)).expand(agents, -1).contiguous()

    def embeddings() -> torch.Tensor:
        parameters = layout.views(rows)
        if picked is None:
            return encoder.encode_block(parameters, _FIRST_DAY, days)
        return encoder.encode_days(parameters, picked, _FIRST_DAY, days)

    needs = TcnEncoder.needs(config, PanelFacts(_DAYS, columns, columns, _FEATURES))
    planned = needs.block(agents, days) if wanted is None else needs.days(agents, wanted, days)
    with LiveTensors() as tensors:
        with torch.no_grad():
            plain = tensors.peak_of(embeddings)
        forward = tensors.peak_of(embeddings)
        found = embeddings()
        stays = tensors.live
        gradient = torch.ones_like(found)
        backward = tensors.live + tensors.peak_of(lambda: torch.autograd.backward(found, gradient))
    # The gradients of the weights, and the rows that they are put together in, are the learner's.
    weights = 3 * rows.nbytes
    assert plain == pytest.approx(planned.plain, abs=weights)
    assert forward == pytest.approx(planned.forward, abs=weights)
    assert stays == planned.result + planned.remembered
    assert backward == pytest.approx(planned.backward, abs=weights)
