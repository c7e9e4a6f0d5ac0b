"""Time per generation from a piece of one. No test depends on how long anything takes."""

import time

import pytest
import torch
from science_cases import small_config

from eigen_core import planning
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.learners import learner_class
from eigen_core.market import PanelFacts
from eigen_core.planning.scale import Scale
from eigen_core.task import market_sample
from eigen_core.task.market_needs import MarketNeeds
from eigen_core.threads import computing_threads

FACTS = PanelFacts(days=160, columns=8, assets=6, features=4)
LARGE = PanelFacts(days=3_700, columns=669, assets=108, features=13)


class _Clock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def _days(config: Config, panel: PanelFacts) -> int:
    return MarketNeeds(config, panel, learner_class(config.learner).heads(config)).evaluated_days


@pytest.fixture
def one_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", _Clock())
    monkeypatch.setattr(time, "process_time", _Clock())


@pytest.mark.usefixtures("one_second_each")
def test_a_group_is_scaled_to_the_whole_population_and_all_steps() -> None:
    config = small_config(population={"size": 6, "group_size": 3}, learner={"gradient_steps": 8})
    found = planning.calibrate(config, FACTS, whole_group=True)
    # One of two groups; what learning begins with in one second, each of eight steps in another.
    assert (found.evaluate, found.train) == (2 * 2, 2 * (1 + 8))
    assert found.seconds == found.evaluate + found.train + found.evolve


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.cpu  # a GPU has no threads to choose
@pytest.mark.parametrize(("with_three", "with_one"), [(4, 1), (1, 4)])
def test_what_is_timed_is_what_the_run_will_choose(
    threads: int, with_three: int, with_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(_Clock):
        def __call__(self) -> float:
            self.now += with_one if torch.get_num_threads() == 1 else with_three
            return self.now

    monkeypatch.setattr(time, "perf_counter", Clock())
    monkeypatch.setattr(time, "process_time", Clock())
    config = small_config(population={"size": 6, "group_size": 3}, learner={"gradient_steps": 8}, threads=threads)
    with computing_threads(3):
        found = planning.calibrate(config, FACTS, whole_group=True)
        assert torch.get_num_threads() == 3
    each = min(with_three, with_one) if threads == 0 else with_three
    assert (found.evaluate, found.train) == (2 * 2 * each, 2 * (1 + 8) * each)


@pytest.mark.usefixtures("one_second_each")
def test_a_small_piece_is_scaled_by_the_days_of_columns_that_are_seen() -> None:
    config = small_config(population={"size": 6, "group_size": 3}, learner={"gradient_steps": 8})
    found = planning.calibrate(config, FACTS)
    # Three of six agents; of two batches a step one.
    assert found.train == 2 * (1 + 2 * 8)
    assert found.evaluate == 2 * 2


@pytest.mark.usefixtures("one_second_each")
def test_a_day_of_two_episodes_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_sample, "_MOST_EVALUATED", 1)
    config = small_config(population={"size": 6, "group_size": 3})
    piece, facts = market_sample._piece(config, FACTS, 3, _days, whole_group=False)
    assert (piece.evaluation.slices, piece.evaluation.fixed_episodes) == (1, 1)
    assert _days(piece, facts) <= 2 * piece.trading.episode_days < _days(config, FACTS)
    found = planning.calibrate(config, FACTS)
    assert found.evaluate == pytest.approx(2 * 2 * _days(config, FACTS) / _days(piece, facts))


@pytest.mark.usefixtures("one_second_each")
@pytest.mark.parametrize("epochs", [1, 10])
def test_what_ppo_begins_with_counts_once_whatever_the_epochs(epochs: int) -> None:
    learner = {"algorithm": "ppo", "epochs": epochs, "batch_size": 12}
    config = small_config(population={"size": 6, "group_size": 3}, learner=learner)
    # Three of six agents; two minibatches of an epoch.
    assert planning.calibrate(config, FACTS).train == 2 * (1 + 2 * epochs)


@pytest.mark.usefixtures("one_second_each")
def test_a_run_that_never_learns_trains_for_no_time() -> None:
    config = small_config(learner={"gradient_steps": 0})
    assert planning.calibrate(config, FACTS).train == 0.0


@pytest.mark.usefixtures("one_second_each")
@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_batches_larger_than_an_episode_are_inferred_too(encoder: str) -> None:
    config = small_config(
        network={"encoder": encoder},
        population={"size": 4, "group_size": 2},
        evaluation={"slices": 1, "lowest": 1},
        learner={"batch_size": 70, "block_days": 80, "accumulation_steps": 1},
        generations=20,
    )
    assert planning.calibrate(config, FACTS).train > 0


@pytest.mark.parametrize("preset", ["quickstart", "eigen2", "eigen2-classic"])
@pytest.mark.parametrize(
    "settings", [[], ["population.size=4096"], ["learner.batch_size=2000", "learner.block_days=0"]]
)
def test_a_piece_is_small_whatever_the_run(preset: str, settings: list[str]) -> None:
    config = load_config(preset, settings)
    piece, panel = market_sample._piece(config, LARGE, config.population.size, _days, whole_group=False)
    assert market_sample._learned(piece, panel) <= market_sample._MOST_LEARNED
    assert market_sample._evaluated(piece, panel, _days) <= market_sample._MOST_EVALUATED
    assert panel.assets <= panel.columns
    assert panel.features == LARGE.features
    assert Scale.of(piece, panel).parameters == Scale.of(config, LARGE).parameters


def test_of_many_agents_some_are_timed_with_all_their_episodes() -> None:
    config = load_config("quickstart", ["population.size=256"])
    facts = PanelFacts(days=8_313, columns=20, assets=20, features=13)
    piece, _ = market_sample._piece(config, facts, 256, _days, whole_group=False)
    assert piece.population.size < 256
    assert piece.evaluation == config.evaluation


@pytest.mark.parametrize("whole_group", [False, True])
def test_it_is_about_a_piece_that_can_be_trained(whole_group: bool) -> None:
    for config in (small_config(), small_config(network={"encoder": "tcn"}, evaluation={"shared_slices": False})):
        found = planning.calibrate(config, FACTS, whole_group=whole_group)
        assert min(found.evaluate, found.train, found.evolve, found.piece_seconds) > 0


@pytest.mark.usefixtures("one_second_each")
@pytest.mark.parametrize(
    ("method", "learning", "share"),
    [("genetic", None, 1), ("cem", None, 3 / 8), ("cem", 1, 1 / 8), ("cem", 0, 0), ("erl", 2, 1 / 4)],
)
def test_the_agents_that_learn_take_the_time(method: str, learning: int | None, share: float) -> None:
    config = small_config(population={"size": 8}, evolution={"method": method, "learning_agents": learning})
    scale = Scale.of(config, FACTS)
    assert scale.learning_agents == 8 * share
    # The piece has as many agents, and as many of them learn.
    assert planning.calibrate(config, FACTS).train == pytest.approx((1 + 2 * 3) if share else 0)
    piece, facts = market_sample._piece(
        load_config("eigen2", []).model_copy(update={"evolution": config.evolution}), LARGE, 4, _days, whole_group=False
    )
    assert 0 <= Scale.of(piece, facts).learning_agents <= max(piece.population.size // 2, 8 * share)
