"""Encoding an episode in one pass, and window by window."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import take_turns
from benchmarks.results import Section
from eigen_core.config import NetworkConfig
from eigen_core.networks import ParameterLayout, Parameters
from eigen_core.networks.encoders.tcn import TcnEncoder
from eigen_core.randomness import keyed_generator

_DAYS = 145
_FEATURES = 13


@dataclass(frozen=True)
class _Case:
    window: int
    agents: int
    columns: int
    rounds: int


_CASES = (_Case(window=64, agents=4, columns=20, rounds=3), _Case(window=504, agents=2, columns=6, rounds=3))


def run() -> Section:
    """Encode the days of one episode both ways, for a short window and the reference one."""
    return Section(
        title="One pass or window by window",
        method=f"The dilated convolutions encode the {_DAYS} days of an episode without a gradient, all in one pass "
        "(`encode_block` of all days) or one day at a time (`encode_block` of a single day, which reads exactly the "
        "window's days of history and computes what a causal convolution needs of them), by turns.",
        columns=("", "one pass (ms)", "window by window (ms)", "times as long", "largest difference", "equal bits"),
        rows=[_compare(case) for case in _CASES],
    )


@torch.no_grad()
def _compare(case: _Case) -> list[str]:
    config = NetworkConfig(encoder="tcn")
    generator = keyed_generator(1, 0, "benchmarks", "encoding", case.window)
    shape = (case.window + _DAYS, case.columns, _FEATURES)
    encoder = TcnEncoder(torch.tensor(generator.standard_normal(shape, dtype="float32")), 0, case.window, config)
    layout = ParameterLayout(tuple(encoder.shapes))
    rows = torch.stack([torch.tensor(layout.initial_row(generator)) for _ in range(case.agents)])
    parameters = layout.views(rows)
    first_day = case.window - 1
    times = take_turns(
        {
            "one pass": lambda: encoder.encode_block(parameters, first_day, _DAYS),
            "windows": lambda: _window_by_window(encoder, parameters, first_day),
        },
        case.rounds,
    )
    one_pass = encoder.encode_block(parameters, first_day, _DAYS)
    windows = _window_by_window(encoder, parameters, first_day)
    return [
        f"window of {case.window} days, {case.agents} agents, {case.columns} columns",
        f"{1e3 * times['one pass'].median:,.1f}",
        f"{1e3 * times['windows'].median:,.0f}",
        f"{times['windows'].over(times['one pass']):.0f}",
        f"{float((one_pass - windows).abs().max()):g}",
        "yes" if torch.equal(one_pass, windows) else "no",
    ]


def _window_by_window(encoder: TcnEncoder, parameters: Parameters, first_day: int) -> Tensor:
    days = range(first_day, first_day + _DAYS)
    return torch.cat([encoder.encode_block(parameters, day, 1) for day in days], dim=1)
