"""What a plan says of each part, against the bytes of all tensors that live while the real code runs."""

from collections.abc import Sequence

import pytest
import torch
from live_tensors import LiveTensors
from science_cases import facts_of, random_panel
from stand_in_gpu import stand_in_gpu
from training_cases import market_of

from eigen_core import pieces
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import evaluate, evolve, hold_out, start_training, train
from eigen_core.market import Panel, PanelFacts
from eigen_core.networks import AgentNetwork, Heads
from eigen_core.planning import phases
from eigen_core.planning.parts import parts_of
from eigen_core.planning.scale import Scale
from eigen_core.trading import Prices

pytestmark = pytest.mark.cpu

_SMALL = (
    "market.window=20",
    "market.validation_days=40",
    "market.holdout_days=40",
    "trading.trading_days=12",
    "trading.settlement_days=4",
    "trading.holding_days=4",
    "network.scales=[1,5,20]",
    "population.size=8",
    "learner.batch_size=32",
    "replay.minimum=100",
    "learner.gradient_steps=2",
    "generations=1",
    "device=cpu",
)
_TCN = ("network.encoder=tcn", "learner.block_days=80")
_COUNTERFACTUAL = ("learner.algorithm=counterfactual", "learner.accumulation_steps=2")
_DIRECT = (
    *("task=portfolio", "learner.algorithm=direct", "learner.stretch_days=100"),
    "portfolio.initial_speed=0.1",
)
_NARROW = (8, 24)
_ALL_TRADED = (16, 0)

# Name, settings, tradable and context columns.
_CASES: tuple[tuple[str, tuple[str, ...], tuple[int, int]], ...] = (
    ("filter_bank", (), _ALL_TRADED),
    ("context", (), _NARROW),
    ("groups", ("population.group_size=3",), _NARROW),
    ("own slices", ("evaluation.shared_slices=false",), _NARROW),
    ("fitness slices", ("evaluation.fitness_slices=16", "evaluation.validation_slices=8"), _NARROW),
    ("days of settlement", ("replay.settlement_days=true",), _NARROW),
    ("nothing observed", ("trading.observe_portfolio=false", "population.group_size=4"), _NARROW),
    (
        "own slices, nothing observed",
        ("evaluation.shared_slices=false", "trading.observe_portfolio=false"),
        _ALL_TRADED,
    ),
    ("five purchases a day", ("trading.purchases_per_day=5",), _NARROW),
    ("twelve purchases a day", ("trading.purchases_per_day=12", "evaluation.fitness_slices=16"), _ALL_TRADED),
    ("a rank of its own", ("trading.rank=separate",), _NARROW),
    (
        "twelve purchases a day, nothing observed",
        ("trading.purchases_per_day=12", "trading.observe_portfolio=false", "trading.rank=separate"),
        _ALL_TRADED,
    ),
    ("odd widths", ("network.embedding=12", "network.queries=3", "network.head_width=48"), _NARROW),
    ("wide encoder", ("network.channels=100", "network.queries=9"), _NARROW),
    ("twins", ("learner.twin_critics=true", "learner.batch_size=44", "learner.accumulation_steps=3"), _NARROW),
    ("td3", ("learner.algorithm=td3", "learner.accumulation_steps=3"), _NARROW),
    ("sac", ("learner.algorithm=sac",), _ALL_TRADED),
    ("sac in groups", ("learner.algorithm=sac", "population.group_size=3"), _NARROW),
    ("counterfactual", ("learner.algorithm=counterfactual",), _ALL_TRADED),
    ("counterfactual in groups", (*_COUNTERFACTUAL, "population.group_size=3", "learner.target_bins=7"), _NARROW),
    ("counterfactual with tcn", (*_COUNTERFACTUAL, *_TCN), _NARROW),
    ("ppo", ("learner.algorithm=ppo", "learner.epochs=2"), _ALL_TRADED),
    ("ppo in groups", ("learner.algorithm=ppo", "learner.epochs=2", "population.group_size=3"), _NARROW),
    ("five steps", ("learner.n_step=5",), _NARROW),
    ("portfolio", ("task=portfolio",), _NARROW),
    ("portfolio, nothing observed", ("task=portfolio", "trading.observe_portfolio=false"), _ALL_TRADED),
    ("direct", (*_DIRECT, "trading.observe_portfolio=false"), _NARROW),
    ("direct in groups", (*_DIRECT, "population.group_size=4", "learner.stretch_days=30"), _ALL_TRADED),
    ("direct, tcn", (*_DIRECT, *_TCN, "trading.observe_portfolio=false"), _NARROW),
    ("portfolio in groups", ("task=portfolio", "learner.algorithm=ppo", "population.group_size=3"), _NARROW),
    ("tcn", _TCN, _NARROW),
    ("tcn in chunks", (*_TCN, "network.column_chunk=5", "population.group_size=4"), _NARROW),
    (
        "tcn with wide embeddings",
        (*_TCN, "network.column_chunk=2", "network.embedding=64", "network.channels=8", "learner.block_days=200"),
        _NARROW,
    ),
    ("tcn on all days", (*_TCN, "network.column_chunk=8", "learner.block_days=0", "population.group_size=2"), _NARROW),
)


def _case(settings: Sequence[str], columns: tuple[int, int]) -> tuple[Config, Panel, Scale]:
    values = dict(setting.split("=") for setting in (*_SMALL, *settings))
    config = load_config("quickstart", [f"{key}={value}" for key, value in values.items()])
    panel = random_panel(config, days=400, assets=columns[0], context=columns[1])
    return config, panel, Scale.of(config, facts_of(config, panel))


_FEW = ("context", "groups", "own slices", "td3", "counterfactual", "ppo", "portfolio", "direct", "tcn in chunks")


@pytest.mark.parametrize(
    ("settings", "columns"),
    [pytest.param(*case, id=name, marks=[] if name in _FEW else pytest.mark.thorough) for name, *case in _CASES],
)
def test_each_phase_holds_what_was_planned(settings: tuple[str, ...], columns: tuple[int, int]) -> None:
    config, panel, scale = _case(settings, columns)
    with LiveTensors() as tensors:
        state = start_training(config, panel)
        measured = {
            "evaluate": tensors.peak_of(lambda: evaluate(state)),
            "train": tensors.peak_of(lambda: train(state)),
            "evolve": tensors.peak_of(lambda: evolve(state)),
            "holdout": tensors.peak_of(lambda: hold_out(state)),
        }
    assert state.history[-1].learning is not None
    planned = {
        "evaluate": phases.evaluate(scale),
        "train": scale.population_bytes + phases.train(scale),
        "evolve": phases.evolve(scale),
        "holdout": phases.hold_out(scale),
    }
    for phase, size in measured.items():
        assert planned[phase] == pytest.approx(size, rel=0.1), phase


def test_noise_that_is_sent_to_a_gpu_is_planned_there_and_on_the_host() -> None:
    settings = ("learner.algorithm=sac", "learner.gradient_steps=30", "device=cuda", "cuda_graphs=false")
    with stand_in_gpu():
        config, panel, scale = _case(settings, _NARROW)
        with LiveTensors() as tensors:
            state = start_training(config, panel)
            evaluate(state)
            measured = tensors.peak_of(lambda: train(state))
    assert scale.population_bytes + phases.train(scale) == pytest.approx(measured, rel=0.1)
    learning = next(part for part in parts_of(scale, "cuda", server=False) if part.name == "learning")
    assert learning.host_bytes > scale.learner.drawn > 0.1 * measured


def test_margins_of_many_targets_are_planned() -> None:
    """They take more than the layers of an actor that is narrow."""
    settings = ("learner.algorithm=counterfactual", "network.head_width=8", "learner.target_bins=31")
    config, panel, scale = _case(settings, _NARROW)
    with LiveTensors() as tensors:
        state = start_training(config, panel)
        assert phases.evaluate(scale) == pytest.approx(tensors.peak_of(lambda: evaluate(state)), rel=0.1)
        learning = scale.population_bytes + phases.train(scale)
        assert learning == pytest.approx(tensors.peak_of(lambda: train(state)), rel=0.1)


@pytest.mark.parametrize("settings", [(), pytest.param((*_TCN, "network.column_chunk=5"), marks=pytest.mark.thorough)])
def test_products_in_bfloat16_hold_no_more_than_planned(settings: tuple[str, ...]) -> None:
    config, panel, scale = _case((*settings, "network.precision=bfloat16"), _NARROW)
    with LiveTensors() as tensors:
        state = start_training(config, panel)
        measured = {
            phases.evaluate(scale): tensors.peak_of(lambda: evaluate(state)),
            scale.population_bytes + phases.train(scale): tensors.peak_of(lambda: train(state)),
            phases.evolve(scale): tensors.peak_of(lambda: evolve(state)),
            phases.hold_out(scale): tensors.peak_of(lambda: hold_out(state)),
        }
    for planned, size in measured.items():
        assert size <= planned <= 2 * size


def test_days_that_are_encoded_in_pieces_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_ENCODED", pieces._ENCODED._replace(cpu=0.05))
    test_each_phase_holds_what_was_planned(("evaluation.shared_slices=false",), _NARROW)


def test_a_second_step_holds_nothing_of_the_first() -> None:
    peaks = []
    for steps in (1, 3):
        config, panel, _ = _case((f"learner.gradient_steps={steps}",), _NARROW)
        state = start_training(config, panel)
        evaluate(state)
        with LiveTensors() as tensors:
            peaks.append(tensors.peak_of(lambda state=state: train(state)))
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)


def tensor_bytes(held: object) -> int:
    return sum(values.nbytes for values in vars(held).values() if isinstance(values, torch.Tensor))


@pytest.mark.parametrize(
    "settings", [(), _TCN, _COUNTERFACTUAL, ("learner.twin_critics=true", "trading.observe_portfolio=false")]
)
def test_what_stays_has_exactly_the_planned_size(settings: tuple[str, ...]) -> None:
    config, panel, scale = _case(settings, _NARROW)
    state = start_training(config, panel)
    parts = {part.name: part.host_bytes for part in parts_of(scale, "cpu", server=False)}
    prices = Prices.of_panel(panel, torch.device("cpu"))
    assert scale.parameters == market_of(state).network.parameters
    assert parts["population"] == state.population.nbytes
    assert scale.row_bytes == state.replay.bytes_per_transition
    assert parts["prices"] == tensor_bytes(prices) + panel.valid.nbytes
    assert parts["fills"] == tensor_bytes(prices.fills(config.trading))
    held = market_of(state).evaluator._held_prices
    assert parts.get("held prices") == (held and held.values.nbytes)
    assert parts["panel"] == sum(
        array.nbytes for array in (panel.features, panel.valid, panel.open, panel.high, panel.low, panel.close)
    )


@pytest.mark.parametrize("settings", [(), ("network.scales=[1,7]",), ("network.scales=[20]",), _TCN])
def test_the_encoder_and_its_making_are_planned(settings: tuple[str, ...]) -> None:
    config, panel, scale = _case(settings, _NARROW)
    parts = {part.name: part.host_bytes for part in parts_of(scale, "cpu", server=False)}
    with LiveTensors() as tensors:
        network = AgentNetwork(panel, config, torch.device("cpu"), Heads())
        stays, most = tensors.live - panel.valid.nbytes, tensors.peak - panel.valid.nbytes
    assert network.parameters
    encoder = parts.get("filter bank", 0) + parts.get("features", 0)
    assert encoder <= stays <= encoder + 64, "the encoder, and a few bounds of actions"
    # The spread over the train days, or the partial sums: which is larger depends on the scales, and a small part more
    # or less of a part that lasts for a second is no harm.
    assert 0.98 * most <= encoder + parts.get("building the filter bank", 0) <= 1.4 * most


def test_only_what_a_short_run_writes_counts_of_the_replay() -> None:
    short = Scale.of(load_config("quickstart", ["generations=2"]), PanelFacts(8_000, 20, 20, 13))
    long = Scale.of(load_config("quickstart", ["generations=200"]), PanelFacts(8_000, 20, 20, 13))
    assert short.rows_stored == 2 * 16 * 5 * 125
    assert long.rows_stored == 50_000


def test_live_tensors_sees_what_lives() -> None:
    with LiveTensors() as tensors:
        kept = torch.zeros(1_000)
        passing = kept + 1
        view = passing[:10]
        del passing
        assert tensors.live == 8_000
        del view
        assert (tensors.live, tensors.peak) == (4_000, 8_000)
        weights = torch.ones(1_000, requires_grad=True)
        result = torch.relu(weights * kept)
        # The product is freed, what the backward pass needs of it is not.
        assert tensors.live == 4_000 + 2 * 4_000
        torch.autograd.backward(result.sum())
        assert tensors.peak >= 4 * 4_000
