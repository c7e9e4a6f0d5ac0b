"""Gymnasium environments as a task: episodes, what is stored of them, exact resume, errors; those of MuJoCo."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import small_config
from training_cases import advance, begun, content_of, saved_of
from uneven_environment import RAW, UNEVEN, UnevenEnvironment

from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.common.errors import InputError
from eigen_core.common.progress import progress_to
from eigen_core.config import Config, PpoConfig, merge
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, evolve, hold_out, restore, snapshot, train
from eigen_core.generation.executor import EpisodeResults, Episodes
from eigen_core.learning.fitness import Champion
from eigen_core.learning.interface import learner_settings
from eigen_core.networks.population import Population
from eigen_core.task import open_data

OTHER_UNITS = "gym:uneven_environment:OtherUnitsEnvironment"


def uneven(**sections: Any) -> Config:
    return small_config(**merge(UNEVEN, sections))


def ring_of(state: TrainingState) -> Ring:
    ring = state.replay.ring()
    return Ring({name: column.cpu().clone() for name, column in ring.columns.items()}, ring.size, ring.written)


class FailingProgress:
    def update(self, name: str, done: int, total: int) -> None:
        if done == 2:
            raise OSError(f"{name} has failed at {done} of {total}")


def test_phases_that_failed_half_way_are_repeated_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    config = uneven(population={"group_size": 2})
    undisturbed, state = advance(begun(config), 2), begun(config)
    # The first generation plays without moments and learns with those of its own episodes.
    for _ in range(2):
        before = content_of(state)
        monkeypatch.setattr(UnevenEnvironment, "fails_at", 30)
        with pytest.raises(OSError, match="gone"):
            evaluate(state)
        assert content_of(state) == before
        monkeypatch.setattr(UnevenEnvironment, "fails_at", None)
        evaluate(state)
        before = content_of(state)
        with progress_to(FailingProgress()), pytest.raises(OSError, match="train has failed at 2 of 9"):
            train(state)
        assert content_of(state) == before
        train(state)
        evolve(state)
    assert content_of(state) == content_of(undisturbed)


@pytest.mark.parametrize("learner", ["ddpg", "sac"])
def test_a_first_generation_learns_the_same_from_an_environment_in_other_units(learner: str) -> None:
    """Random actions, which do not depend on what is observed, so that both play the same."""
    sections = {"learner": {"algorithm": learner}, "exploration": {"random_steps": 50}}
    states = [begun(uneven(task=task, **sections)) for task in (UNEVEN["task"], OTHER_UNITS)]
    for state in states:
        evaluate(state)
        assert train(state) is not None
    one, other = (state.population for state in states)
    assert not torch.equal(one.weights, states[0].initial_weights())
    assert torch.equal(one.weights, other.weights)


def test_a_champion_is_played_and_exported_with_the_moments_by_which_it_was_chosen() -> None:
    state = advance(begun(uneven()), 1)
    chosen_under = state.task_state
    advance(state, 1)
    state.commit(champion=Champion(state.population.weights[0].clone(), 1e9, 1e9, 2, 0, chosen_under))
    facts = snapshot(state).documents["champion"]
    assert isinstance(facts, dict)
    observed = chosen_under["observation_sum"] / chosen_under["observation_count"]
    assert facts["observation_mean"] == observed.float().tolist()
    held_out = hold_out(state)
    advance(state, 1)
    assert state.task_state["observation_count"] > chosen_under["observation_count"]
    assert held_out is not None
    assert hold_out(state) == held_out.model_copy(update={"generation": 3})


def test_stored_rows_are_those_of_episodes_played_one_by_one() -> None:
    state = begun(uneven(environment=RAW))
    task, weights = state.task, state.initial_weights()[:2]
    starts = np.array([[5, 6, 7], [5, 8, 9]])
    noise = torch.linspace(-0.5, 0.5, 2 * 3 * 9 * 2, device=state.device).reshape(2, 3, 9, 2)
    played = task.roll_out(weights, starts, noise, record=True)
    assert played.transitions is not None
    rows: dict[str, list[Any]] = {name: [] for name in played.transitions}
    totals = np.zeros_like(starts, dtype=np.float64)
    for agent, episode in np.ndindex(*starts.shape):
        environment = UnevenEnvironment()
        observed = environment.reset(seed=int(starts[agent, episode]))[0].astype(np.float32).ravel()
        critic = task.critic_layout.views(weights[agent : agent + 1, : task.critic_layout.size])
        actor = task.actor_layout.views(weights[agent : agent + 1, task.critic_layout.size :])
        for step in range(9):
            encoding = task.encode(critic, torch.tensor(observed, device=state.device)[None, None])
            own_noise = noise[agent : agent + 1, episode : episode + 1, step]
            action = task.policy(actor, encoding).play(own_noise).actions[0, 0].cpu().numpy()
            after, reward, terminal, _, _ = environment.step(action)
            following = after.astype(np.float32).ravel()
            values = (observed, following, action, np.float32(reward), terminal, terminal or step == 8)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
            totals[agent, episode] += reward
            observed = following
            if terminal:
                break
    assert {int(length) for length in played.counts["steps"]} != {9}
    assert 0 < sum(rows["terminal"]) < sum(rows["ends"]) == 6
    for name, column in rows.items():
        np.testing.assert_array_equal(played.transitions[name].cpu().numpy(), np.array(column), err_msg=name)
    np.testing.assert_allclose(played.rewards, totals, rtol=1e-12)


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    state = begun(uneven(learner={"gamma": 0.5}))
    at_first = state.task_state
    evaluate(state)
    assert state.task_state is at_first
    evolve(state)
    slots = torch.arange(state.replay.size, device=state.device)[None]
    raw = state.replay.pick(slots)
    returns, total = [], 0.0
    for reward, end in zip(raw["reward"][0].tolist(), raw["ends"][0].tolist(), strict=True):
        total = 0.5 * total + reward
        returns.append(total)
        total = 0.0 if end else total
    observed = raw["observation"]
    with state.task.at(state.task_state):
        found = state.task.transitions(state.replay, slots, 0)
        encoding = state.task.encode({}, observed)
    assert state.task.state is at_first
    torch.testing.assert_close(found.rewards[..., 0], raw["reward"] / float(np.std(returns)))
    expected = ((observed - observed.mean(1)) / observed.std(1, correction=0)).clamp(-10, 10)
    torch.testing.assert_close(encoding, expected, rtol=1e-4, atol=1e-5)


def test_rows_that_episodes_can_leave_are_taken_and_others_are_not() -> None:
    state = advance(begun(uneven()), 3)
    assert state.replay.written > state.replay.capacity
    assert state.task.check_rows(ring_of(state)) is None
    slot = next(index for index in range(state.replay.cursor, 95) if not ring_of(state).columns["ends"][index])
    last = (state.replay.cursor - 1) % 95
    for name, index, value, what in (
        ("observation", slot + 1, 7.0, "do not follow"),
        ("next_observation", slot, 7.0, "do not follow"),
        ("terminal", slot, True, "go on after their end"),
        ("ends", last, False, "after their end|does not end"),
    ):
        ring = ring_of(state)
        ring.columns[name][index] = value
        assert re.search(what, str(state.task.check_rows(ring))), name
    shorter = begun(uneven(environment={"episode_steps": 1})).task
    assert "more than 1 steps" in str(shorter.check_rows(ring_of(state)))


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("gym:Pendulum-v9", "task gym:Pendulum-v9: .* It provides versioned environments"),
        ("gym:Nowhere-v1", "Give the id of a registered environment, for example gym:Pendulum-v1"),
        ("gym:no_such_module:Thing", "module no_such_module cannot be imported"),
        ("gym:uneven_environment:Thing-v0", "Give the id of a registered environment"),
        ("gym:uneven_environment:ManyChoicesEnvironment", "its action space is MultiDiscrete"),
        ("gym:uneven_environment:UnboundedEnvironment", "needs a finite low below a finite high"),
        ("gym:uneven_environment:DictionaryEnvironment", "its observation space is Dict"),
        (
            "gym:uneven_environment:BrokenEnvironment",
            r"missing 1 required .*'rooms'.* set task to an id .*gymnasium\.register.*kwargs",
        ),
        (
            "gym:uneven_environment:WrongArguments-v0",
            r"takes no arguments .*'rooms': 1.* set task to an id .*gymnasium\.register.*kwargs",
        ),
        ("gym:uneven_environment:OldStepEnvironment", r"step\(action\) .*expected 5, got 4"),
        ("gym:uneven_environment:UnseededEnvironment", r"reset\(seed=0\) .* TypeError: .*seed"),
        ("gym:uneven_environment:OtherShapeEnvironment", r"step\(action\) .* \(2,\) instead of \(2, 2\)"),
        ("gym:uneven_environment:VectorRewardEnvironment", r"the reward has the shape \(2,\)"),
    ],
)
def test_an_environment_that_agents_cannot_play_is_refused_with_a_sentence(task: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refusal:
        open_data(uneven(task=task))
    assert "\n" not in str(refusal.value)


def test_episodes_need_a_limit_and_a_generation_fits_the_replay() -> None:
    with pytest.raises(InputError, match=r"set environment\.episode_steps"):
        open_data(uneven(environment={"episode_steps": None}))
    with pytest.raises(InputError, match=r"below the 100 transitions .* \(5 agents x 2 episodes x 10 steps\)"):
        open_data(uneven(environment={"episode_steps": 10}))


def test_a_reward_that_is_not_finite_stops_the_phase() -> None:
    state = begun(uneven(task="gym:uneven_environment:NotFiniteEnvironment"))
    with pytest.raises(FloatingPointError, match=r"gave the reward nan, .* in step 3 of the episode with seed \d+\."):
        evaluate(state)
    assert state.evaluated is None


def test_an_environment_that_a_module_registers_is_played() -> None:
    by_class = advance(begun(uneven()), 1)
    for task in ("gym:Uneven-v0", "gym:uneven_environment:Uneven-v0"):
        by_id = advance(begun(uneven(task=task, environment={"episode_steps": None})), 1)
        assert by_id.history == by_class.history


def test_a_learner_of_continuous_actions_is_refused_where_they_are_discrete() -> None:
    with pytest.raises(InputError, match=r"use learner\.algorithm ppo"):
        begun(uneven(task="gym:uneven_environment:DiscreteEnvironment"))


def test_ppo_learns_from_the_newest_generation_alone() -> None:
    """With older transitions in the replay or without, agents learn the same; without epochs they do not learn."""
    learner = {"algorithm": "ppo", "epochs": 2, "batch_size": 6}
    states = [advance(begun(uneven(replay={"capacity": capacity}, learner=learner)), 3) for capacity in (90, 900)]
    assert torch.equal(states[0].population.weights, states[1].population.weights)
    assert advance(begun(uneven(learner={**learner, "epochs": 0})), 1).history[-1].learning is None


def test_the_first_episodes_of_ppo_are_learned_by_the_moments_that_played_them(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = {"algorithm": "ppo", "batch_size": 16, "epochs": 2}
    state = begun(uneven(learner=learner, exploration={"scale": 0.0}))
    moments: list[Mapping[str, torch.Tensor]] = []
    play = state.executor.play

    def seen(agents: Population, episodes: Episodes) -> EpisodeResults:
        moments.append(episodes.task_state)
        return play(agents, episodes)

    monkeypatch.setattr(state.executor, "play", seen)
    evaluate(state)
    assert int(moments[-1]["observation_count"]) > 0
    assert state.champion is not None
    for name, values in moments[-1].items():
        assert torch.equal(state.learning_task_state[name], values)
        assert torch.equal(state.champion.task_state[name], values)
    evaluated = state.evaluated
    assert evaluated is not None
    # What was played for the moments alone is neither stored nor counted.
    assert int(evaluated.task_state["observation_count"]) == state.replay.written
    assert share_of_ratios_beyond_the_clip(state, moments[0]) > 0.04
    assert share_of_ratios_beyond_the_clip(state, moments[-1]) == 0.0


def share_of_ratios_beyond_the_clip(state: TrainingState, played_by: Mapping[str, torch.Tensor]) -> float:
    """Share of the stored actions of all agents whose density differs by more than the clip when learning begins."""
    task, critic, weights = state.task, state.task.critic_layout.size, state.population.weights
    rows = state.replay.pick(torch.arange(state.replay.size, device=state.device).expand(len(weights), -1))
    densities = []
    for moments in (played_by, state.learning_task_state):
        with task.at(moments):
            encoding = task.encode({}, rows["observation"])
            policy = task.policy(task.actor_layout.views(weights[:, critic:]), encoding)
            densities.append(policy.log_prob(rows["action"]))
    ratios = (densities[1] - densities[0]).exp()
    return float(((ratios - 1.0).abs() > learner_settings(state.config, PpoConfig).clip_range).float().mean())


@pytest.mark.parametrize("task", ["gym", "gym:", "market:x", "football", ""])
def test_a_task_that_is_none_is_refused_with_a_sentence(task: str) -> None:
    with pytest.raises(InputError, match=r"give market, portfolio, or gym: and a Gymnasium environment"):
        load_config("quickstart", [f"task={task}"])


SMALL_MUJOCO = (
    "environment.episode_steps=25",
    "environment.normalise_observations=true",
    "network.head_width=8",
    "population.size=3",
    "replay.minimum=50",
    "learner.gradient_steps=2",
    "learner.batch_size=8",
)


@pytest.fixture
def _mujoco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)


def begin_mujoco(preset: str, group_size: int = 0) -> TrainingState:
    return begun(load_config(preset, [*SMALL_MUJOCO, f"population.group_size={group_size}"]))


@pytest.mark.parametrize("preset", ["halfcheetah", "swimmer"])
@pytest.mark.cpu
@pytest.mark.usefixtures("_mujoco")
def test_groups_and_a_resume_change_no_bit_of_mujoco(preset: str) -> None:
    state = advance(begin_mujoco(preset), 2)
    assert state.history[-1].learning is not None
    resumed = begin_mujoco(preset, group_size=1)
    restore(resumed, saved_of(state))
    expected = content_of(advance(begin_mujoco(preset, group_size=2), 3))
    assert content_of(advance(resumed, 1)) == expected
    assert content_of(advance(state, 1)) == expected


@pytest.mark.usefixtures("_mujoco")
def test_a_warning_is_logged_once_and_written_to_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin_mujoco("halfcheetah")
    mujoco = pytest.importorskip("mujoco")
    caplog.clear()
    unstable = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    )
    for _ in range(2):
        data = mujoco.MjData(unstable)
        data.qvel[0] = float("nan")
        mujoco.mj_step(unstable, data)
    assert [record.message[:12] for record in caplog.records] == ["MuJoCo: Nan,"]
    assert not list(tmp_path.iterdir())
