"""What an actor-critic that learns from batches of the replay needs of memory."""

from collections.abc import Iterator

from eigen_core.config import Config
from eigen_core.learners.interface import LearnerNeeds
from eigen_core.needs import DOUBLE, SINGLE, Change, halves
from eigen_core.pieces import device_kind, noise_at_once
from eigen_core.task import TaskNeeds

SMALLEST_BATCH = 16
"""Batch size below which a plan suggests none."""


def replay_learner_needs(
    config: Config, task: TaskNeeds, rows: int, group: int, *, agent: int, noises: int
) -> LearnerNeeds:
    """Return what a critic step with targets, then an actor step with what it encoded, need.

    Args:
        config, task, rows, group: as for `Learner.needs`.
        agent: bytes of an agent.
        noises: for how many purposes it draws noise for each action of a batch.
    """
    learner, size = config.learner, config.population.size
    how = f"batches of {learner.batch_size}, {learner.accumulation_steps} an optimizer step"
    if learner.gradient_steps == 0 or rows < config.replay.minimum:
        return LearnerNeeds(agent, 0, 0, how, 0)
    batch = task.batch(group, learner.batch_size)
    slots = DOUBLE * size * learner.gradient_steps * learner.accumulation_steps * learner.batch_size
    actions = group * learner.accumulation_steps * learner.batch_size
    noise = noises * SINGLE * actions * (task.noise_values // task.episode_steps)
    drawn = noise * noise_at_once(learner.gradient_steps, noise, device_kind(config.device))
    held = slots + drawn + learner.accumulation_steps * (batch.transitions + batch.encode.result)
    weights = SINGLE * group * max(task.critic, task.actor)
    encode, act, values = batch.encode, batch.act, batch.values
    td_target = max(encode.plain, encode.result + act.plain, encode.result + values.plain)
    encoded = encode.result + encode.remembered
    critic = max(encode.forward, encoded + values.forward, encoded + values.backward, encode.backward)
    actor = max(act.forward, act.remembered + max(values.forward, values.to_inputs))
    # The encoding of the batch under way is among those of all batches.
    step = max(td_target, critic - encode.result, actor)
    sampler = task.sampler(min(rows, config.replay.capacity))
    return LearnerNeeds(
        agent,
        plan=max(sampler.plain, sampler.result + 2 * slots),
        # After the last batch: the gradient, its squares, and Adam's temporaries.
        learn=held + max(2 * weights + step, 7 * weights),
        how=how,
        batches=learner.gradient_steps * learner.accumulation_steps,
        drawn=drawn,
    )


def replay_learner_changes(config: Config) -> Iterator[Change]:
    """Yield smaller batches, as many transitions an optimizer step as before."""
    learner = config.learner
    for value in halves(learner.batch_size, SMALLEST_BATCH, 2):
        steps = learner.accumulation_steps * learner.batch_size // value
        yield Change({"learner.batch_size": value, "learner.accumulation_steps": steps})
