"""The convolutions of `tcn`, computed as far as wanted days need them, against torch's own over the whole block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv1d, pad

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import NetworkConfig
from eigen_core.networks import ParameterLayout, Parameters
from eigen_core.networks.tcn import Schedule, TcnEncoder, receptive_dilations

_DAYS, _FEATURES = 60, 3


def _slow(parameters: Parameters, features: Tensor, window: int, first_day: int, days: int) -> Tensor:
    """Embeddings of a block in double precision, `[agents, days, columns, embedding]`, agent after agent."""
    history = pad(features, (0, 0, 0, 0, window - 1, 0))[first_day : first_day + days + window - 1].permute(1, 2, 0)
    found = []
    for agent in range(len(parameters["encoder.input.bias"])):
        values = {name: value[agent].double() for name, value in parameters.items()}

        def layer(name: str, values: dict[str, Tensor] = values) -> tuple[Tensor, Tensor]:
            return values[f"encoder.{name}.weight"], values[f"encoder.{name}.bias"]

        weight, bias = layer("input")
        hidden = torch.relu(conv1d(history.double(), weight.T[:, :, None], bias))
        for index, dilation in enumerate(receptive_dilations(window)):
            weight, bias = layer(f"layer{index}")
            kernel = weight.view(2, -1, weight.shape[1]).permute(2, 1, 0)
            hidden = hidden[..., dilation:] + torch.relu(conv1d(hidden, kernel, bias, dilation=dilation))
        weight, bias = layer("output")
        found.append(conv1d(hidden, weight.T[:, :, None], bias).permute(2, 0, 1))
    return torch.stack(found)


@pytest.mark.parametrize(("channels", "embedding", "chunk"), [(16, 8, 0), (6, 5, 2)])
@pytest.mark.parametrize("window", [1, 2, 7, 20])
@pytest.mark.parametrize("wanted", [None, 1, 3, 25])
def test_embeddings_and_gradients_are_those_of_plain_convolutions(
    window: int, wanted: int | None, channels: int, embedding: int, chunk: int
) -> None:
    agents, columns, first_day, days = 2, 3, 5, 25
    generator = keyed_generator(1, 0, "test", "features")
    features = torch.tensor(generator.standard_normal((_DAYS, columns, _FEATURES)), dtype=torch.float32)
    encoder = TcnEncoder(features, 0, window, NetworkConfig(channels=channels, embedding=embedding, column_chunk=chunk))
    layout = ParameterLayout(tuple(encoder.shapes))
    rows = torch.tensor(generator.uniform(-0.5, 0.5, (agents, layout.size)), dtype=torch.float32).requires_grad_()
    expected = _slow(layout.views(rows), features, window, first_day, days)
    if wanted is None:
        found = encoder.encode_block(layout.views(rows), first_day, days)
    else:
        picked = torch.stack([torch.tensor(generator.permutation(days)[:wanted]) for _ in range(agents)])
        found = encoder.encode_days(layout.views(rows), picked + first_day, first_day, days)
        expected = expected.gather(1, picked[:, :, None, None].expand(-1, -1, *expected.shape[2:]))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    weights = torch.tensor(generator.standard_normal(found.shape))
    (gradient,) = torch.autograd.grad((found * weights).sum(), rows)
    (slow,) = torch.autograd.grad((expected * weights).sum(), rows)
    torch.testing.assert_close(gradient, slow, rtol=1e-3, atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 60), st.data())
def test_no_schedule_computes_more_than_the_whole_block(window: int, days: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(1, days))
    schedule, whole = Schedule(window, days, wanted), Schedule(window, days)
    computed = sum(schedule.full[: schedule.whole + 1]) + sum(schedule.sparse)
    assert computed <= sum(whole.full) + wanted
    assert schedule.sparse[-1] == wanted
    places = schedule.gathered(torch.arange(wanted)[None])
    assert int(places.max()) < schedule.full[schedule.whole]
    assert all(len(set(one[0].tolist())) == wanted for one in places)
