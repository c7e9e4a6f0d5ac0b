"""Tables, cards, pages and frames, against the obvious calculation."""

import base64
import json
import math
import re
from pathlib import Path

import pandas as pd
from synthetic_run import make_run

from eigen_core.common.records import Excess
from eigen_core.reporting.tables import (
    champion_card,
    champion_sentence,
    diversity_sentence,
    generation_rows,
    history_frame,
    markdown_table,
    plots_markdown,
    population_table,
)


def test_the_population_is_ranked_by_fitness_and_knows_its_origins() -> None:
    history, _ = make_run(7, 10)
    rows = population_table(history)
    newest, before = history[-1], history[-2]
    assert [row["rank"] for row in rows] == list(range(1, 11))
    assert [row["fitness (reward)"] for row in rows] == sorted((round(f, 2) for f in newest.fitness), reverse=True)
    for row in rows:
        agent = int(str(row["agent"]))
        assert row["fitness (reward)"] == round(newest.fitness[agent], 2)
        assert row["validation (reward)"] == round(newest.validations[agent], 2)
        assert [row["origin"]] == [descent.origin for descent in before.descent if descent.agent == agent]
    json.dumps(rows)


def test_the_first_population_is_initial_and_ties_keep_their_order() -> None:
    history, _ = make_run(1, 5)
    tied = [history[0].model_copy(update={"fitness": (1.0, 3.0, 1.0, 3.0, 2.0)})]
    rows = population_table(tied)
    assert [row["agent"] for row in rows] == [1, 3, 4, 0, 2]
    assert {row["origin"] for row in rows} == {"initial"}
    assert population_table([]) == []
    assert markdown_table([]) == ""


def test_the_course_names_units_and_leaves_unknown_times_open() -> None:
    history, telemetry = make_run(4, 4)
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
        "champion (reward)": round(history[2].champion_validation, 2),
        "time (s)": round(seconds, 2),
        "peak (MB)": round(third.rss_peak_bytes / 1_000_000, 1),
    }
    on_gpu = [
        phase.model_copy(update={"device_reserved_peak": 7_000_000 + index}) for index, phase in enumerate(third.phases)
    ]
    with_gpu = generation_rows(history, [third.model_copy(update={"phases": tuple(on_gpu)})])
    assert [row["GPU (MB)"] for row in with_gpu] == [None, None, 7.0, None]
    assert generation_rows([], telemetry) == []


def test_the_champion_is_described_in_a_card_and_a_sentence() -> None:
    history, telemetry = make_run(12, 6)
    newest = history[-1]
    found, agent = history[newest.champion_generation - 1], newest.champion_agent
    card = champion_card(history)
    assert card["champion"] == f"agent {agent} of generation {found.generation}"
    assert card["validation (reward)"] == round(max(record.validation for record in history), 2)
    assert card["fitness (reward)"] == round(found.fitness[agent], 2)
    assert card["age (generations)"] == 12 - found.generation
    assert "score (reward)" not in card
    assert champion_sentence(history).endswith("the best of 72 validations.")
    excess, interval = (
        Excess(mean=0.25, standard_error=0.5, trades=40),
        "+0.25 % a trade (95 % interval −0.73 to +1.23)",
    )
    history[-1] = newest.model_copy(update={"champion_excess": excess, "champion_score": 1.25})
    card, sentence = champion_card(history), champion_sentence(history)
    assert (card["score (reward)"], card["excess over the market"]) == (1.25, interval)
    assert "by a score of 1.25 from fitness and validation" in sentence
    assert interval in sentence
    assert [row["excess a trade"] for row in generation_rows(history, telemetry)][-2:] == [None, "+0.25 ± 0.98 %"]
    assert history_frame(history)["champion_excess_mean"].tolist()[-1] == 0.25


def test_diversity_is_shown_where_it_was_recorded() -> None:
    history, telemetry = make_run(2, 4)
    assert diversity_sentence(history[-1]) is None
    known = history[-1].model_copy(update={"ancestors": (2, 0, 2, 2)})
    assert diversity_sentence(known) == "The population descends from 2 of the first 4 agents."
    known = known.model_copy(update={"policy_distance": 0.125})
    sentence = diversity_sentence(known) or ""
    assert "2 of the first 4 agents" in sentence
    assert "12.5 %" in sentence
    rows = generation_rows([history[0], known], telemetry[:1])
    assert [row["ancestors"] for row in rows] == [None, 2]
    assert history_frame([history[0], known])["distinct_ancestors"].tolist()[1] == 2.0
    assert markdown_table(rows).splitlines()[-1].endswith("| – | – |")


def test_a_page_carries_the_pictures_in_their_order(tmp_path: Path) -> None:
    contents = {"fitness.png": b"\x89PNG one", "time_and_memory.png": b"\x89PNG two"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    page = plots_markdown([tmp_path / name for name in contents])
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == ["Fitness", "Time and memory"]
    pictures = re.findall(r"!\[.*?\]\(data:image/png;base64,(.*?)\)", page)
    assert [base64.b64decode(picture) for picture in pictures] == list(contents.values())


def test_the_frame_has_a_row_a_generation_and_flat_columns() -> None:
    history, telemetry = make_run(9, 4, first_learning=4)
    frame = history_frame(history, telemetry[:-1])
    assert frame.index.name == "generation"
    assert frame.index.tolist() == list(range(1, 10))
    assert frame["best_fitness"].tolist() == [record.best_fitness for record in history]
    assert frame["trading_win_rate"].tolist() == [record.trading["win_rate"] for record in history]
    assert frame["learning_critic_loss"].isna().tolist() == [True] * 3 + [False] * 6
    assert frame.loc[5, "learning_value"] == (history[4].learning or {})["value"]
    assert frame["seconds"].tolist()[:-1] == [entry.seconds for entry in telemetry[:-1]]
    assert math.isnan(frame["rss_peak_bytes"].iloc[-1])
    assert frame["weights_sha256"].tolist() == [record.weights_sha256 for record in history]
    assert not {"fitness", "validations", "descent", "learning", "trading", "evolution"} & set(frame.columns)


def test_frames_have_the_same_columns_and_number_types_whatever_is_known() -> None:
    history, telemetry = make_run(3, 4, first_learning=99)
    learned = [f"learning_{name}" for name in ("gradient_steps", "critic_loss")]
    trading = [f"trading_{name}" for name in ("trades", "win_rate", "idle_days", "fees")]
    columns = [*learned, *trading, "evolution_mutation_rate", "evolution_mutation_std"]
    known, unknown = history_frame(history, telemetry, columns), history_frame(history, (), columns)
    empty = history_frame([], (), columns)
    assert known.columns.tolist() == unknown.columns.tolist() == empty.columns.tolist()
    assert empty.empty
    for column in ("learning_gradient_steps", "learning_critic_loss", "seconds", "rss_bytes"):
        assert pd.api.types.is_float_dtype(unknown[column])
