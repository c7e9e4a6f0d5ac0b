"""Tables, cards, ancestry, axes, labels and settings of a report, against the obvious calculation."""

import itertools
import math
import shlex
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from synthetic_run import make_run

from eigen_core.common.records import (
    Excess,
    GenerationRecord,
    HoldoutResult,
    Lineage,
    Member,
    champion_path,
    origins,
)
from eigen_core.config import PRESET_NAMES, Config
from eigen_core.config.loading import differing_keys, load_config
from eigen_core.reporting.report import differing_settings, settings_of, training_command
from eigen_core.reporting.style import EndLabel, compress_outliers, label_ends, scale_losses
from eigen_core.reporting.tables import (
    champion_card,
    champion_sentence,
    diversity_sentence,
    generation_rows,
    history_frame,
    holdout_sentence,
    markdown_table,
    population_table,
)


def test_the_population_is_ranked_by_fitness_and_knows_its_origins() -> None:
    history, _ = make_run(7, 10)
    rows = population_table(history)
    newest, before = history[-1], history[-2]
    came = {one.agent: one.origin for one in before.descent}
    ranked = sorted(range(10), key=lambda agent: -newest.fitness[agent])
    columns = ("rank", "agent", "fitness (reward)", "validation (reward)", "origin")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        (rank, agent, round(newest.fitness[agent], 2), round(newest.validations[agent], 2), came[agent])
        for rank, agent in enumerate(ranked, 1)
    ]
    # Of the first population; ties keep their order.
    tied = [make_run(1, 5)[0][0].model_copy(update={"fitness": (1.0, 3.0, 1.0, 3.0, 2.0)})]
    assert [(row["agent"], row["origin"]) for row in population_table(tied)] == [
        (agent, "initial") for agent in (1, 3, 4, 0, 2)
    ]
    assert population_table([]) == []
    assert markdown_table([]) == ""


def test_the_course_names_units_and_leaves_unknown_times_open() -> None:
    history, telemetry = make_run(4, 4)
    history[2] = history[2].model_copy(update={"champion_score": 7.0})
    rows = generation_rows(history, [entry for entry in telemetry if entry.generation != 2])
    assert [row["generation"] for row in rows] == [1, 2, 3, 4]
    assert rows[1]["time (s)"] is None
    assert rows[1]["peak (MB)"] is None
    third = telemetry[2]
    seconds = third.evaluate_seconds + third.train_seconds + third.evolve_seconds + (third.checkpoint_seconds or 0.0)
    assert rows[2] == {
        "generation": 3,
        "best (reward)": round(max(history[2].fitness), 2),
        "mean (reward)": round(sum(history[2].fitness) / 4, 2),
        "champion (reward)": 7.0,
        "time (s)": round(seconds, 2),
        "peak (MB)": round(third.rss_peak_bytes / 1_000_000, 1),
    }
    phases = tuple(phase.model_copy(update={"device_reserved_peak": 7_000_000}) for phase in third.phases)
    with_gpu = generation_rows(history, [third.model_copy(update={"phases": phases})])
    assert [row["GPU (MB)"] for row in with_gpu] == [None, None, 7.0, None]


def test_the_champion_is_described_in_a_card_and_a_sentence() -> None:
    history, telemetry = make_run(12, 6)
    newest = history[-1]
    found, agent = history[newest.champion_generation - 1], newest.champion_agent
    card = champion_card(history)
    best = round(max(record.validation for record in history), 2)
    assert (card["validation (reward)"], card["fitness (reward)"]) == (best, round(found.fitness[agent], 2))
    assert (card["age (generations)"], card["score (reward)"]) == (12 - found.generation, best)
    assert champion_sentence(history).endswith("the best of 72 validations.")
    excess = Excess(mean=0.25, standard_error=0.5, trades=40)
    interval = "+0.25 % a trade (95 % interval −0.73 to +1.23)"
    history[-1] = newest.model_copy(update={"champion_excess": excess, "champion_score": 1.25})
    card, sentence = champion_card(history), champion_sentence(history)
    assert (card["score (reward)"], card["excess over the market"]) == (1.25, interval)
    assert interval in sentence
    assert [row["excess a trade"] for row in generation_rows(history, telemetry)][-2:] == [None, "+0.25 ± 0.98 %"]
    assert history_frame(history)["champion_excess_mean"].tolist()[-1] == 0.25


def test_diversity_is_shown_where_it_was_recorded() -> None:
    history, telemetry = make_run(2, 4)
    assert diversity_sentence(history[-1]) is None
    known = history[-1].model_copy(update={"ancestors": (2, 0, 2, 2), "policy_distance": 0.125})
    sentence = diversity_sentence(known) or ""
    assert "2 of the first 4 agents" in sentence
    assert "12.5 %" in sentence
    assert diversity_sentence(known.model_copy(update={"policy_distance": None})) == f"{sentence.partition(';')[0]}."
    rows = generation_rows([history[0], known], telemetry[:1])
    assert [row["ancestors"] for row in rows] == [None, 2]
    assert history_frame([history[0], known])["distinct_ancestors"].tolist()[1] == 2.0
    assert markdown_table(rows).splitlines()[-1].endswith("| – | – |")


def test_the_champion_stands_beside_agents_with_random_weights() -> None:
    rewards: dict[str, Any] = {"champion_rewards": (10.0, 20.5), "random_rewards": (1.0, 30.0)}
    played = HoldoutResult(generation=6, slices=(1, 2), champion_statistics=(("trades", 3.0),), **rewards)
    sentence = holdout_sentence(played)
    assert "the champion earns 15.25 (trades 3)" in sentence
    assert "2 untrained agents earn 15.50 on average, from 1.00 to 30.00" in sentence


def test_the_frame_has_a_row_a_generation_and_the_same_flat_columns_whatever_is_known() -> None:
    history, telemetry = make_run(9, 4, first_learning=4)
    frame = history_frame(history, telemetry[:-1])
    assert (frame.index.name, frame.index.tolist()) == ("generation", list(range(1, 10)))
    assert frame["best_fitness"].tolist() == [record.best_fitness for record in history]
    assert frame["trading_win_rate"].tolist() == [record.trading["win_rate"] for record in history]
    assert frame["learning_critic_loss"].isna().tolist() == [True] * 3 + [False] * 6
    assert frame["seconds"].tolist()[:-1] == [entry.seconds for entry in telemetry[:-1]]
    assert math.isnan(frame["rss_peak_bytes"].iloc[-1])
    assert not {"fitness", "validations", "descent", "learning", "trading", "evolution"} & set(frame.columns)
    nested = [name for name in map(str, frame) if name.startswith(("learning_", "trading_", "evolution_"))]
    unknown, empty = history_frame(history[:3], (), nested), history_frame([], (), nested)
    assert set(unknown.columns) == set(empty.columns) == set(frame.columns)
    assert empty.empty
    for column in ("learning_gradient_steps", "learning_critic_loss", "seconds", "rss_bytes"):
        assert pd.api.types.is_float_dtype(unknown[column])


def _family() -> list[GenerationRecord]:
    """Three agents; the champion (agent 2 of generation 1) comes back in generation 3, the next one is found in 4."""
    template = make_run(1, 3)[0][0]
    # Parents of the three agents that each generation breeds; the second has a share of the first parent's weights.
    breeding = (
        (("elite", (1,)), ((0, 1), 0.4), 1, (1, 2)),
        (("champion", (2,)), ((1, 1), 0.6), 0, (1, 2)),
        (("elite", (0,)), ((2, 0), 0.3), 0, (1, 2)),
        (("elite", (1,)), ((1, 2), 0.5), 1, (4, 1)),
    )
    history = []
    for generation, ((origin, kept), (parents, blend), mutated, champion) in enumerate(breeding, 1):
        descent = (
            Lineage(agent=0, origin=origin, parents=kept),  # type: ignore[arg-type] # one of the origins
            Lineage(agent=1, origin="offspring", parents=parents, blend=blend),
            Lineage(agent=2, origin="mutant", parents=(mutated,)),
        )
        update = {"champion_generation": champion[0], "champion_agent": champion[1], "generation": generation}
        history.append(template.model_copy(update={**update, "descent": descent}))
    return history


def test_origins_are_those_of_the_record_before() -> None:
    family = _family()
    assert (origins(family, 1), origins(family, 3)) == ({}, {0: "champion", 1: "offspring", 2: "mutant"})


def test_the_path_follows_the_larger_share_and_jumps_back_to_the_champion() -> None:
    assert champion_path(_family()) == [Member(1, 2), Member(3, 0), Member(4, 1)]
    assert champion_path(_family()[:1]) == [Member(1, 2)]
    assert champion_path([]) == []
    history, _ = make_run(40, 12)
    bred = {Member(record.generation + 1, one.agent): one for record in history for one in record.descent}
    path = champion_path(history)
    assert path[0].generation == 1
    assert all(parent.agent in bred[child].parents for parent, child in itertools.pairwise(path))


def _drawn(values: list[float]) -> Axes:
    axes = Figure().add_subplot()
    axes.plot(values)
    return axes


def _heights(axes: Axes, values: ArrayLike) -> NDArray[np.float64]:
    """Heights of values in the axes, 0 at the bottom and 1 at the top."""
    # Matplotlib chooses the limits when they are asked for.
    axes.get_ylim()
    places = [(0.0, value) for value in np.asarray(values, dtype=np.float64)]
    return np.asarray((axes.transData + axes.transAxes.inverted()).transform(places))[:, 1]


def test_one_disaster_is_compressed_and_the_recent_values_stay_linear() -> None:
    core = [-10_000.0, -2_000.0, 300.0, 500.0, 700.0, 800.0]
    axes = _drawn(core)
    assert compress_outliers(axes, [core], core) == "logarithmic beyond ±800"
    assert scale_losses(_drawn(core), np.array([core])) == "logarithmic beyond ±800"
    zero, half, whole, disaster = _heights(axes, [0.0, 400.0, 800.0, -10_000.0])
    assert whole - half == pytest.approx(half - zero)
    assert whole - zero > 0.3
    assert disaster > 0.0


@settings(deadline=None)
@given(
    core=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
    other=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
)
def test_every_axis_shows_all_values_in_order_with_ticks_apart(core: list[float], other: list[float]) -> None:
    axes = _drawn([*core, *other])
    words = compress_outliers(axes, [core], [*core, *other])
    heights = _heights(axes, sorted([*core, *other]))
    assert (np.diff(heights) >= -1e-9).all()
    assert heights[0] >= -1e-6
    assert heights[-1] <= 1.0 + 1e-6
    ticks = _heights(axes, list(axes.get_yticks()))
    ticks = ticks[(ticks >= 0.0) & (ticks <= 1.0)]
    assert len(ticks)
    if words:
        assert (np.diff(ticks) > 0.05).all()


@settings(deadline=None)
@given(st.lists(st.floats(1e-9, 1e12), min_size=2, max_size=12))
def test_a_logarithmic_axis_has_ticks_among_its_values(values: list[float]) -> None:
    if max(values) < 10.0 * min(values):
        values = [*values, 10.0 * max(values)]
    axes = _drawn(values)
    assert scale_losses(axes, np.array([values])) == "logarithmic"
    low, high = axes.get_ylim()
    assert 1 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 9


@settings(deadline=None)
@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=6))
def test_labels_neither_overlap_nor_leave_the_picture(heights: list[float]) -> None:
    figure = Figure(figsize=(10, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.1, 0.6, 0.7))
    label_ends(axes, [EndLabel(y, f"line {y:.2f}", "black") for y in heights])
    boxes = [text.get_window_extent() for text in sorted(axes.texts, key=lambda text: text.get_position()[1])]
    assert all(lower.y1 <= upper.y0 + 0.5 for lower, upper in itertools.pairwise(boxes))
    assert axes.bbox.y0 - 1.0 <= boxes[0].y0
    assert boxes[-1].y1 <= axes.bbox.y1 + 1.0
    shown = sorted(float(text.get_text().removeprefix("line ")) for text in axes.texts)
    assert [float(text.get_text().removeprefix("line ")) for text in axes.texts] == shown


GIVEN = ("generations=3", "learner.batch_size=16", "market.context=AAPL,MSFT", "market.data=/home/user/my prices.csv")


@pytest.mark.parametrize(
    ("preset", "given", "differing"),
    [
        *((preset, ("seed=7", "checkpoint.store=/elsewhere"), "checkpoint.store") for preset in PRESET_NAMES),
        ("quickstart", GIVEN, "market.data"),
    ],
)
def test_the_command_trains_a_run_with_the_same_settings(preset: str, given: tuple[str, ...], differing: str) -> None:
    config = load_config(preset, given)
    words = shlex.split(training_command(config, "mine"))
    assert words[:6] == ["eigen", "train", "--run", "mine", "--preset", preset]
    if "--data" in words:
        # A report is sent to others: it names no folder of this machine.
        place = words.index("--data")
        assert words[place + 1] == "my prices.csv"
        words[place : place + 2] = []
    assert set(words[6::2]) <= {"--set"}
    assert differing_keys(load_config(preset, words[7::2]), config) == (differing,)


def test_settings_have_what_the_preset_has_where_they_differ() -> None:
    shown = {setting.key: setting for setting in settings_of(load_config("quickstart", GIVEN))}
    changed = {key: setting.preset for key, setting in shown.items() if setting.preset is not None}
    assert set(changed) == {"generations", "learner.batch_size", "market.context", "market.data"}
    assert changed["generations"] == str(Config().generations)
    assert (shown["generations"].value, shown["market.data"].value) == ("3", "my prices.csv")
    assert len(shown) > 50


def test_of_runs_only_settings_that_differ_are_shown() -> None:
    configs = {"one": load_config("quickstart"), "two": load_config("quickstart", GIVEN[:2])}
    different = differing_settings(configs)
    assert different["generations"] == {"one": str(Config().generations), "two": "3"}
    assert set(different) == {"generations", "learner.batch_size"}
    assert differing_settings({"one": configs["one"], "same": configs["one"]}) == {}
