"""Every learner, population method, encoder and task: groups and a resume give the same bits, and agents get better.

The task `pointer`, the learner `jitter` and the encoder `last_day` of `tests/support` are not Eigen's: each is one file
and one line of the registry, and everything else trains, saves, resumes, plans and plots them.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jitter_learner
import numpy as np
import pytest
import torch
from known import known
from science_cases import LEARNER_OF_TASK, LEARNERS_OF_ANY_TASK, learner_with, method_with, random_panel, small_config
from training_cases import advance, begun, content_for, content_of, resumed_from, saved_of
from uneven_environment import RAW, UNEVEN

import eigen_core
from benchmarks.synthetic import planted_edge_market
from eigen_core.checkpoint.integrity import UnfitSnapshotError
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord, RecordLog
from eigen_core.config import Config, OffPolicyConfig, merge, registry
from eigen_core.generation import hold_out, restore, snapshot, start_training
from eigen_core.learning.interface import learner_settings
from eigen_core.machine import performance
from eigen_core.machine.limits import Limit
from eigen_core.machine.memory_usage import own_resident_bytes
from eigen_core.planning.probe import measure
from eigen_core.planning.run_plan import RunPlan
from eigen_core.planning.sizes import Sizes
from eigen_core.reporting.plots import write_plots
from eigen_core.task import open_data, task_class
from eigen_core.task.interface import TaskData

LEARNERS, METHODS = list(registry.LEARNERS), list(registry.METHODS)
PORTFOLIO = {"short": 0.3, "initial_speed": 0.2}
KINDS: dict[str, dict[str, Any]] = {
    **{learner: {"learner": {"algorithm": learner}} for learner in LEARNERS},
    **{method: {"evolution": method_with(method, sync_generations=1, learning_agents=2)} for method in METHODS},
    **{
        f"portfolio, {learner}": {"task": "portfolio", "learner": {"algorithm": learner}, "portfolio": PORTFOLIO}
        for learner in (*LEARNERS_OF_ANY_TASK, "direct")
    },
    **{f"gym, {learner}": {**UNEVEN, "learner": {"algorithm": learner}} for learner in LEARNERS_OF_ANY_TASK},
    "gym, discrete": {**UNEVEN, "task": "gym:uneven_environment:DiscreteEnvironment", "learner": {"algorithm": "ppo"}},
    "gym, not normalised": merge(UNEVEN, {"environment": RAW}),
    "gym, ppo, not normalised": merge(UNEVEN, {"environment": RAW, "learner": {"algorithm": "ppo"}}),
    **{
        f"linear part, {learner}": {
            "task": LEARNER_OF_TASK.get(learner, "market"),
            "network": {"linear_scales": [1, 3]},
            "learner": learner_with(learner, batch_size=4, known_return_weight=0.5),
            "evolution": {"evolves": "genes"},
        }
        for learner in LEARNERS
    },
    "averaged weights": {
        "network": {"linear_scales": [1, 3], "linear_degree": 2},
        "learner": learner_with("counterfactual", batch_size=4, ema_decay=0.9),
        "evolution": {"evolves": "genes"},
    },
    "random actions at first": {"exploration": {"random_steps": 300}},
    "actions in half precision": {"replay": {"actions": "float16"}},
}
POINTER: dict[str, Any] = {"task": "pointer"}
JITTER: dict[str, Any] = {"learner": {"algorithm": "jitter"}}
ADDED: dict[str, dict[str, Any]] = {
    "added task": POINTER,
    "added learner": JITTER,
    "added encoder": {"network": {"encoder": "last_day"}},
    "added task and learner": POINTER | JITTER,
}

PLOTTED = {*LEARNERS, *METHODS, "portfolio, direct", "gym, discrete", "added task", "added learner"}
"""One of each set of curves, of each origin of agents, and of each kind of task."""


def marked(kinds: Sequence[str]) -> pytest.MarkDecorator:
    slower = {f"{group}, {learner}" for group in ("portfolio", "linear part") for learner in ("td3", "sac", "direct")}
    slower.add("added task and learner")
    cases = [pytest.param(kind, marks=[pytest.mark.thorough] if kind in slower else []) for kind in kinds]
    return pytest.mark.parametrize("kind", cases)


every_kind, every_added = marked([*KINDS, *ADDED]), marked(list(ADDED))


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TASKS, "pointer", "pointer_task:PointerTask")
    monkeypatch.setitem(registry.LEARNERS, "jitter", "jitter_learner:JitterLearner")
    monkeypatch.setitem(registry.ENCODERS, "last_day", "last_day_encoder:LastDayEncoder")


def config_with(kind: str, **sections: Any) -> Config:
    """A small configuration; only a file in the package could name by itself what was added."""
    config = small_config(**merge(KINDS.get(kind, {}), sections))
    added = {
        section: named if isinstance(named, str) else getattr(config, section).model_copy(update=named)
        for section, named in ADDED.get(kind, {}).items()
    }
    return config.model_copy(update=added)


@every_kind
def test_a_resumed_run_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    config = config_with(kind)
    state = advance(begun(config), 2)
    learned = known(state.history[-1].learning)
    assert {curve.name for curve in state.learner.curves} <= learned.keys()
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(state))
    resumed = resumed_from(directory, config)
    assert content_of(resumed) == content_of(state)
    assert content_of(advance(resumed, 2)) == content_of(advance(state, 2))
    held_out = known(hold_out(state))
    assert hold_out(resumed) == held_out
    if kind in PLOTTED:
        assert len(write_plots(state.history, state.telemetry, tmp_path / "plots", state.learner.curves)) == 4


@every_kind
@pytest.mark.cpu
def test_groups_change_no_bit(kind: str) -> None:
    # All at once; the last of four is a group of its own.
    populations = [{"size": 4, "group_size": size} for size in (0, 3)]
    contents = [content_of(advance(begun(config_with(kind, population=one)), 3)) for one in populations]
    assert contents[0] == contents[1]


@every_added
def test_what_was_added_is_planned_and_measured_without_a_word_on_memory(kind: str) -> None:
    config = config_with(kind, device="cpu")
    data = TaskData(content_for(config))
    measured = measure(config, data, own_resident_bytes())
    assert min(measured.seconds.values()) > 0
    sizes = Sizes.of(config, data)
    plan = RunPlan.of(data, sizes, measured, {"host": Limit(10_000_000_000, "here")})
    assert plan.fits
    assert {"population", "replay"} <= {part.name for part in plan.parts}
    assert sizes.population_bytes == begun(config).population.nbytes


def test_an_added_task_opens_its_own_data_and_has_no_shape_of_a_panel(tmp_path: Path) -> None:
    market = {"data": str(tmp_path / "nowhere.csv")}
    config = config_with("added task", market=market)
    assert open_data(config).content is None
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        open_data(config_with("added learner", market=market))
    with pytest.raises(InputError, match="not played on a panel"):
        task_class(config).data_of_shape(config, 1_000, 10, 10)


FILES = {
    "learning/jitter.py": "jitter_learner.py",
    "networks/last_day.py": "last_day_encoder.py",
    "task/pointer.py": "pointer_task.py",
}
LINES = {
    "LEARNERS": '"jitter": "eigen_core.learning.jitter:JitterLearner",',
    "ENCODERS": '"last_day": "eigen_core.networks.last_day:LastDayEncoder",',
    "TASKS": '"pointer": "eigen_core.task.pointer:PointerTask",',
}


@pytest.mark.thorough
def test_one_file_and_one_line_each_add_a_learner_a_task_and_an_encoder(tmp_path: Path) -> None:
    """As docs/architecture.md says; a user then names them in settings."""
    copy, support = tmp_path / "source", Path(jitter_learner.__file__).parent
    shutil.copytree(Path(eigen_core.__file__).parent, copy / "eigen_core", ignore=shutil.ignore_patterns("__pycache__"))
    for added, example in FILES.items():
        shutil.copy(support / example, copy / "eigen_core" / added)
    table = copy / "eigen_core" / "config" / "registry.py"
    text = table.read_text()
    for name, line in LINES.items():
        text = text.replace(f"{name}: Mapping[str, str] = {{\n", f"{name}: Mapping[str, str] = {{\n    {line}\n")
    table.write_text(text)
    settings = ["preset=ddpg", "generations=1", "population.size=2", "replay.minimum=10", "learner.algorithm=jitter"]
    for name, more in {"one": ["task=pointer"], "two": ["network.encoder=last_day"]}.items():
        chosen = [*settings, *more, f"checkpoint.store={tmp_path / 'store'}"]
        command = [sys.executable, "-m", "flows.cli", "train", "--run", name]
        command += [part for value in chosen for part in ("--set", value)]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert f"Run {name} is finished" in ended.stdout


# A learner that replays and one that does not.
@pytest.mark.parametrize("learner", ["td3", "sac"])
def test_bits_do_not_depend_on_how_much_noise_is_drawn_at_a_time(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = []
    # Of one of three steps, of two, of all.
    for megabytes in (0.0, 0.014, 1.0):
        monkeypatch.setattr(performance, "_NOISE", performance._NOISE._replace(cpu=megabytes))
        contents.append(content_of(advance(begun(config_with(learner)), 1)))
    assert contents[0] == contents[1] == contents[2]


RATES: dict[str, dict[str, Any]] = {
    "ddpg": {"actor_learning_rate": 3e-3},
    "td3": {"actor_learning_rate": 3e-3},
    "sac": {"actor_learning_rate": 1e-2, "initial_temperature": 0.05, "entropy_target": -3.0},
    "ppo": {"actor_learning_rate": 1e-2, "epochs": 10},
}
"""Of each learner that needs no more than a `Task`."""


@pytest.mark.parametrize(
    "learner", [name if name == "ddpg" else pytest.param(name, marks=pytest.mark.thorough) for name in RATES]
)
def test_it_learns_to_name_the_number_that_is_shown(learner: str) -> None:
    common = {"gradient_steps": 40, "accumulation_steps": 1, "batch_size": 16, "gamma": 0.0, "reward_scale": 1.0}
    rates = {"critic_learning_rate": 1e-2, "tau": 0.1, **RATES[learner]}
    section = learner_with(learner, **common, **rates)
    state = advance(begun(config_with("added task", learner=section, evolution={"enabled": False})), 8)
    first, last = state.history[0], state.history[-1]
    assert sum(last.validations) > 0.6 * sum(first.validations)


CHANGES: dict[str, dict[str, Any]] = {
    "genetic": {},
    "cem": {"distribution_variance": 0.01},
    "erl": {"sync_generations": 1},
    "pbt": {"sync_generations": 2},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thorough
def test_it_finds_agents_that_name_the_number_that_is_shown(method: str) -> None:
    learner = {"gradient_steps": 20, "batch_size": 16, "gamma": 0.0, "reward_scale": 1.0, "tau": 0.1}
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}
    evolution = {"method": method, **CHANGES[method]}
    config = config_with("added task", population={"size": 6}, learner={**learner, **rates}, evolution=evolution)
    state = advance(begun(config), 12)
    first, last = state.history[0], state.history[-1]
    assert max(last.fitness) > 0.75 * max(first.fitness)
    assert sum(last.fitness) > 0.85 * sum(first.fitness)


@pytest.mark.parametrize(("learner", "counts"), [("ddpg", "critic_steps"), ("sac", "steps")])
def test_the_critic_of_cem_and_its_optimizer_have_learned_in_all_generations(learner: str, counts: str) -> None:
    state = advance(begun(config_with("cem", learner={"algorithm": learner})), 3)
    learned = sum(record.learning is not None for record in state.history)
    assert learned > 1
    drawn = state.population.rows(slice(3, 5))
    steps = learner_settings(state.config, OffPolicyConfig).gradient_steps
    assert drawn.state[counts].tolist() == [learned * steps] * 2
    critic = state.task.critic_layout.size
    for tensor in (drawn.weights, drawn.state["targets"], drawn.state["second_moment"]):
        assert torch.equal(tensor[0, :critic], tensor[1, :critic])
    assert not torch.equal(drawn.state["targets"][:, :critic], drawn.weights[:, :critic])
    assert not torch.equal(drawn.weights[0, critic:], drawn.weights[1, critic:])


def test_a_distribution_that_no_run_can_have_is_refused() -> None:
    state = advance(begun(config_with("cem")), 1)
    saved = saved_of(state)
    saved.tensors["evolution"]["variance"][2] = -1.0
    with pytest.raises(UnfitSnapshotError, match=r"evolution\.safetensors holds variance from -1"):
        restore(begun(config_with("cem")), saved)


def test_a_generation_of_cem_that_was_bred_by_the_rules_of_earlier_versions_is_not_continued() -> None:
    state = advance(begun(config_with("cem")), 1)
    record = state.history[0]
    # They had no agent with the mean.
    sampled = [dataclasses.replace(one, origin="sample") for one in record.descent]
    state.history = RecordLog.of(GenerationRecord, [record.model_copy(update={"descent": tuple(sampled)})])
    with pytest.raises(InputError, match=r"Generation 1 .* earlier version's rules of evolution\.method cem"):
        restore(begun(config_with("cem")), saved_of(state))


@pytest.mark.parametrize(("method", "learning"), [("cem", 3), ("erl", 0), ("erl", 5)])
def test_more_or_fewer_agents_than_can_learn_are_refused(method: str, learning: int) -> None:
    config = small_config(evolution={"method": method, "learning_agents": learning})
    with pytest.raises(InputError, match=rf"evolution\.learning_agents {learning} .*population\.size 5"):
        begun(config)
    with pytest.raises(InputError, match="learning_agents"):
        Sizes.of(config, TaskData(random_panel(config)))


@pytest.mark.thorough
def test_the_champion_finds_a_planted_edge() -> None:
    config = Config(
        preset="ddpg",
        seed=2,
        device="cpu",
        market={"window": 2},
        network={"scales": [1]},
        population={"size": 6},
        replay={"minimum": 1_000},
        learner={"gradient_steps": 16},
    )
    result = known(hold_out(advance(start_training(config, planted_edge_market(config, 1_200, 8, seed=2)), 6)))
    assert result.champion_reward > max(2.0 * result.random_reward, float(np.max(result.random_rewards)))
