"""Encoders: one pass equals window after window; the window limits sight; convolutions equal those of torch."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import NetworkConfig
from eigen_core.networks.encoders import Encoder, Features, FilterBankEncoder, LinearInputs, filter_bank
from eigen_core.networks.layout import ParameterLayout, Parameters
from eigen_core.networks.tcn import TcnEncoder, receptive_dilations

CPU, WIDTH = torch.device("cpu"), NetworkConfig(channels=16, embedding=8)


def features_of(days: int, columns: int, seed: int = 1) -> Features:
    return keyed_generator(seed, 0, "test", "features").standard_normal((days, columns, 5)).astype(np.float32)


def parameters_of(encoder: Encoder, agents: int) -> Parameters:
    layout = ParameterLayout(tuple(encoder.shapes))
    rows = [layout.initial_row(keyed_generator(2, 0, "test", agent, "weights")) for agent in range(agents)]
    return layout.views(torch.tensor(np.stack(rows)))


@pytest.mark.parametrize(
    ("window", "columns", "agents", "channels", "embedding"),
    [(64, 6, 3, 16, 8), (504, 3, 2, 16, 8), (1, 4, 2, 16, 8), (5, 4, 1, 6, 5), (20, 7, 2, 10, 11), (20, 3, 2, 6, 3)],
)
def test_one_pass_equals_window_by_window_to_the_bit(
    window: int, columns: int, agents: int, channels: int, embedding: int
) -> None:
    features = features_of(window + 30, columns)
    config = NetworkConfig(channels=channels, embedding=embedding)
    encoder = TcnEncoder(features, CPU, slice(0), window, config, None)
    parameters = parameters_of(encoder, agents)
    first_day = window - 1
    at_once = encoder.encode_block(parameters, first_day, 25)
    for day in range(first_day, first_day + 25):
        only_the_window = TcnEncoder(features[day - window + 1 : day + 1], CPU, slice(0), window, config, None)
        assert torch.equal(only_the_window.encode_block(parameters, window - 1, 1)[:, 0], at_once[:, day - first_day])


def encoder_of(kind: str, features: Features, chunk: int) -> Encoder:
    config = WIDTH.model_copy(update={"column_chunk": chunk, "scales": (1, 5)})
    return (
        TcnEncoder(features, CPU, slice(0), 9, config, None)
        if kind == "tcn"
        else FilterBankEncoder(features, CPU, slice(None), 0, config, None)
    )


@pytest.mark.parametrize("kind", ["tcn", "filter_bank"])
def test_picked_days_equal_the_same_days_of_a_block(kind: str) -> None:
    encoder = encoder_of(kind, features_of(60, 5), 0)
    parameters = parameters_of(encoder, 2)
    block = encoder.encode_block(parameters, 10, 40)
    days = torch.tensor([[12, 49, 30], [10, 11, 48]])
    picked = encoder.encode_days(parameters, days, 10, 40)
    for agent in range(2):
        assert torch.equal(picked[agent], block[agent, days[agent] - 10])


def test_averages_of_more_days_than_are_computed_at_once_are_plain_sums() -> None:
    """Of whole numbers, whose sums are exact."""
    values = keyed_generator(3, 0, "test", "whole").integers(-9, 10, (5_000, 2, 3))
    scales, training = (1, 5, 60), 4_200
    found, _ = filter_bank(values.astype(np.float32), CPU, slice(training), scales)
    before = np.concatenate([np.zeros((1, 2, 3)), values.cumsum(axis=0)])
    for index, scale in enumerate(scales):
        sums = before[1:] - before[np.maximum(np.arange(1, 5_001) - scale, 0)]
        means = sums.astype(np.float32) / np.float32(scale)
        spread = np.sqrt(np.square(means[:training].astype(np.float64)).mean(axis=(0, 1)))
        np.testing.assert_allclose(found[..., 3 * index : 3 * index + 3], means / spread, rtol=1e-6)


def test_kept_days_are_those_days_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    features, config = features_of(5_000, 3), NetworkConfig(linear_scales=(1, 5, 60), linear_degree=2)
    trained, kept = np.r_[0:1_000, 1_500:4_000], torch.tensor([0, 7, 2_047, 2_048, 4_999])
    whole, _ = filter_bank(features, CPU, trained, (1, 5, 60))
    assert torch.equal(filter_bank(features, CPU, trained, (1, 5, 60), kept)[0], whole[kept])
    some, every_day = torch.tensor([4, 1]), LinearInputs(features, CPU, trained, config)
    for most in (1 << 25, 0):
        monkeypatch.setattr("eigen_core.networks.encoders._MOST_KEPT", most)
        assert torch.equal(LinearInputs(features, CPU, trained, config, kept)[some], every_day[kept[some]])
        read = LinearInputs(features, CPU, trained, config, torch.arange(0))
        for days in (slice(0, 9), slice(30, 2_100), slice(4_990, 5_000)):
            assert torch.equal(read[days], every_day[days])


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
    features = generator.standard_normal((_DAYS, columns, _FEATURES)).astype(np.float32)
    encoder = TcnEncoder(
        features, CPU, slice(0), window, NetworkConfig(channels=channels, embedding=embedding, column_chunk=chunk), None
    )
    layout = ParameterLayout(tuple(encoder.shapes))
    rows = torch.tensor(generator.uniform(-0.5, 0.5, (agents, layout.size)), dtype=torch.float32).requires_grad_()
    expected = _slow(layout.views(rows), torch.from_numpy(features), window, first_day, days)
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
