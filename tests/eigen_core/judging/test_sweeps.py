"""What a sweep varies, what it suggests, and which trials it prunes."""

from dataclasses import replace
from operator import ge
from pathlib import Path

import pytest

from eigen_core.common.errors import End, InputError
from eigen_core.config import PRESET_NAMES
from eigen_core.config.explain import settings
from eigen_core.config.loading import load_config

pytest.importorskip("optuna")
from eigen_core.judging.sweeps import (
    Definition,
    Study,
    Sweep,
    as_settings,
    results_of,
    space_of,
    state_of,
    varied_of,
)

GIVEN = ["generations=4", "preset=ddpg"]


def definition(*varied: str, seeds: int = 1, prunes: bool = True, given: list[str] = GIVEN) -> Definition:
    return Definition(load_config(None, given), space_of(varied, None, given), seeds, prunes)


@pytest.mark.parametrize(
    ("varied", "sentence"),
    [
        (["learner.gama=0.9:0.99"], "did you mean learner.gamma?"),
        (["learner.batch_size=1.5:3"], "give a whole number"),
        (["learner.gamma=0.99:0.9"], "is no range"),
        (["learner.gamma=0:0.9:log"], "is no range"),
        (["learner.gamma=0.1:0.9:exp"], "is no range"),
        (["learner.gamma=0.9:0.99", "learner.gamma=0.5,0.6"], "once more"),
        (["generations=4,5"], "once more"),
        (["seed=1,2"], "give --seeds"),
        (["memory.soft=0.5:0.6"], "cannot be varied"),
        (["network.scales=1,5"], "cannot be varied"),
        (["replay.minimum=100000"], "replay.capacity"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_a_sentence(varied: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        space_of(varied, None, GIVEN)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_every_setting_that_a_preset_varies_can_be_varied_alone_and_with_another_learner(preset: str) -> None:
    varied = varied_of(load_config(preset), [])
    assert len(space_of(varied, preset, [])) == len(varied)
    other = ["learner.algorithm=ppo"]
    assert set(space_of(varied_of(load_config(preset, other), other), preset, other)) <= set(settings("ppo"))


@pytest.mark.thorough
def test_suggestions_are_the_same_however_often_the_sweep_is_begun_again(tmp_path: Path) -> None:
    varied = ("learner.gamma=0.9:0.99", "learner.batch_size=32:256")

    def suggested(name: str, *, again: bool) -> list[dict[str, float]]:
        study = Study(tmp_path / name, definition(*varied))
        # More than the draws with which the sampler begins.
        for number in range(13):
            assert study.suggest() == number
            study.finish(number, [study.trials()[number].params["learner.gamma"]])
            if again:
                study = Study(tmp_path / name, definition(*varied))
        return [trial.params for trial in study.trials()]

    assert suggested("whole.db", again=False) == suggested("again.db", again=True)


def test_each_combination_of_choices_comes_once(tmp_path: Path) -> None:
    study = Study(tmp_path / "a.db", definition("learner.batch_size=32,64", "learner.gradient_steps=1:3"))
    numbers = []
    while (number := study.suggest()) is not None:
        numbers.append(number)
    assert numbers == list(range(6))
    found = sorted(tuple(as_settings(trial.params)) for trial in study.trials())
    assert found == sorted(
        (f"learner.batch_size={batch}", f"learner.gradient_steps={steps}") for batch in (32, 64) for steps in (1, 2, 3)
    )
    seeds = Study(tmp_path / "b.db", definition(seeds=3))
    assert (seeds.suggest(), seeds.suggest()) == (0, None)


@pytest.mark.thorough
def test_a_trial_below_the_median_of_the_finished_ones_is_pruned_at_the_same_generation_however_it_is_watched(
    tmp_path: Path,
) -> None:
    curves = [[1.0, 2.0, 3.0, 4.0]] * 5
    behind = [1.0, 2.0, 2.5, 9.0]

    def study_of(name: str) -> Study:
        study = Study(tmp_path / name, definition("learner.gamma=0.9:0.99"))
        for number, curve in enumerate(curves):
            assert study.suggest() == number
            assert not study.is_behind(number, curve)
            study.finish(number, [curve[-1]])
        assert study.suggest() == 5
        return study

    at_once, one_by_one = study_of("at_once.db"), study_of("one.db")
    assert at_once.is_behind(5, behind)
    assert [one_by_one.is_behind(5, behind[:count]) for count in range(4)] == [False, False, False, True]
    # A process that was killed after it had reported and before it ended the trial.
    again = Study(tmp_path / "one.db", definition("learner.gamma=0.9:0.99"))
    assert again.unfinished() == [5]
    assert again.is_behind(5, behind)
    for study in (at_once, again):
        study.prune(5)
        assert [state_of(trial) for trial in study.trials()] == ["finished"] * 5 + ["pruned"]
        assert len(study.trials()[5].intermediate_values) == 3


def test_of_several_objectives_the_best_trial_is_of_the_pareto_front_and_none_is_pruned(tmp_path: Path) -> None:
    values = [(1.0, 5.0), (2.0, 3.0), (2.0, 4.0), (0.0, 9.0), (1.0, 1.0), (0.5, 5.0), (-1.0, 9.0)]
    given = definition("learner.gamma=0.9:0.99")
    several = replace(given, objectives=("sharpe", "growth"))

    class Known(Sweep):
        def result_of(self, number: int) -> tuple[tuple[float, ...], None]:
            return values[number], None

        def champions_of(self, run: str) -> list[float]:  # noqa: ARG002 - the interface
            return []

    study = Study(tmp_path / "a.db", several)
    for number, each in enumerate(values):
        assert study.suggest() == number
        assert not study.is_behind(number, [-float(number)] * 4)
        study.finish(number, each)
    study = Study(tmp_path / "a.db", several)
    assert study.suggest() == len(values)
    results = results_of(Known("a", several), study.trials(), study.front())
    better = [[all(map(ge, two, one)) and two != one for two in values] for one in values]
    assert [one.number for one in results] == [2, 1, 0, 4, 5, 3, 6, 7]
    assert {one.number for one in results if one.front} == {number for number, by in enumerate(better) if not any(by)}
    assert results[0].front
    for other in (given, replace(given, objectives=("growth", "sharpe"))):
        with pytest.raises(InputError, match="--objective differs"):
            Study(tmp_path / "a.db", other)


def test_nothing_is_pruned_where_that_is_off_and_a_refusal_keeps_its_reason(tmp_path: Path) -> None:
    never = definition("learner.gamma=0.9:0.99", prunes=False)
    study = Study(tmp_path / "a.db", never)
    for number, value in enumerate((6.0, 5.0, 4.0, 3.0, 2.0, 1.0)):
        assert study.suggest() == number
        assert not study.is_behind(number, [value] * 4)
        study.finish(number, [value])
    assert study.suggest() == 6
    study.record(6, End.DIVERGED, "They contradict each other.")
    results = results_of(Sweep("a", never), Study(tmp_path / "a.db", never).trials()[6:])
    assert [(one.state, one.reason) for one in results] == [("diverged", "They contradict each other.")]


def test_another_definition_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    Study(path, definition("learner.gamma=0.9:0.99"))
    changed = Definition(load_config(None, [*GIVEN, "threads=1"]), definition("learner.gamma=0.9:0.99").space, 1, True)
    Study(path, changed)
    for other, what in (
        (definition("learner.gamma=0.9:0.98"), "--vary differs"),
        (definition("learner.gamma=0.9:0.99", seeds=2), "--seeds differs"),
        (definition("learner.gamma=0.9:0.99", given=["generations=5", "preset=ddpg"]), "generations differs"),
        (definition("learner.gamma=0.9:0.99", given=[*GIVEN, "learner.tau=0.1"]), "learner.tau differs"),
    ):
        with pytest.raises(InputError, match=what):
            Study(path, other)
