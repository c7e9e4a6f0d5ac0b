"""Learning with all agents in one bank, in groups, and one agent after the other."""

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.market_task import market_of
from benchmarks.measure import take_turns
from benchmarks.plain import PlainAgent, PlainDdpg
from benchmarks.results import Section
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, start_training
from eigen_core.learners.batches import BatchPlan
from eigen_core.market import build_panel
from eigen_core.memory import tune_allocator
from eigen_core.population import Population, agent_groups

_GROUP_SIZES = (16, 4, 1)
_ROUNDS = 3
_FILTER_BANK = ("learner.gradient_steps=8",)
_TCN = ("network.encoder=tcn", "learner.gradient_steps=1", "learner.block_days=256")


def run() -> Section:
    """Learn from the same batches with a small and a medium encoder, in four ways."""
    # As a training does: it decides from which size on an activation is mapped and unmapped by every operator.
    tune_allocator()
    rows = [
        *_compare("filter bank", _FILTER_BANK),
        *_compare("tcn, blocks of 256 days", _TCN),
    ]
    return Section(
        title="The population as one bank",
        method="Gradient steps (targets, critic and actor: forward, backward, clipping, Adam) of 16 agents of preset "
        "quickstart on the same batches of 64 transitions, by turns: `DdpgLearner` on groups of 16, 4 and 1 agents, "
        "and a loop over agents made of `torch.nn` modules with fused `torch.optim.AdamW`.",
        columns=("", "one step of all agents (ms)", "times the bank of 16", "largest difference of a weight"),
        rows=rows,
        remarks=(
            "Agents, optimizers and targets of both are made before the time is taken, and learn on from round to "
            "round. The difference is that of the weights after the steps of one round, to the bank of 16; a step of "
            f"Adam moves a weight by about {load_config('quickstart').learner.critic_learning_rate:g}.",
        ),
    )


def _compare(name: str, assignments: Sequence[str]) -> list[list[str]]:
    config = load_config("quickstart", assignments)
    state = start_training(config, build_panel(config)[0])
    evaluate(state)
    plan = state.learner.plan(state.replay, state.population.size, 1)
    assert isinstance(plan, BatchPlan)
    works: dict[str, Callable[[], object]] = {
        f"groups of {size}": partial(learn_in_groups, state, plan, size, state.population.clone())
        for size in _GROUP_SIZES
    }
    works["plain loop"] = partial(learn_one_by_one, state, plan, plain_learners(state))
    times = take_turns(works, _ROUNDS)
    bank = learn_in_groups(state, plan, _GROUP_SIZES[0], state.population.clone())
    rows = []
    for work, taken in times.items():
        rows.append(
            [
                f"{name}: {work}",
                f"{1e3 * taken.median / plan.gradient_steps:,.1f}",
                f"{taken.over(times[f'groups of {_GROUP_SIZES[0]}']):.2f}",
                f"{_difference(state, plan, work, bank):.1e}",
            ]
        )
    return rows


def _difference(state: TrainingState, plan: BatchPlan, work: str, bank: Population) -> float:
    if work == "plain loop":
        learners = plain_learners(state)
        learn_one_by_one(state, plan, learners)
        return max(
            learner.agent.largest_difference(market_of(state).network, row)
            for learner, row in zip(learners, bank.weights, strict=True)
        )
    groups = learn_in_groups(state, plan, int(work.split()[-1]), state.population.clone())
    return float((groups.weights - bank.weights).abs().max())


def learn_in_groups(state: TrainingState, plan: BatchPlan, group_size: int, population: Population) -> Population:
    """Let a population learn in place, so many agents at a time, as a training does; return it."""
    for agents in agent_groups(population.size, group_size):
        group = population if agents == slice(0, population.size) else population.rows(agents)
        learned = state.learner.learn(group, plan.rows(agents), state.replay, lambda: None)
        if learned.group is not population:
            population.put(agents, learned.group)
    return population


def plain_learners(state: TrainingState, agents: int | None = None) -> list[PlainDdpg]:
    """Return the first agents, or all, as modules of `torch.nn` with targets and optimizers."""
    first = PlainAgent(market_of(state).panel, state.config)
    learners = []
    for row in state.population.weights[:agents]:
        agent = first.copy()
        agent.load(market_of(state).network, row)
        learners.append(PlainDdpg(agent, state.config, state.replay))
    return learners


def learn_one_by_one(state: TrainingState, plan: BatchPlan, learners: list[PlainDdpg]) -> None:
    """Let one agent after the other learn, in place."""
    for learner, slots in zip(learners, plan.slots, strict=True):
        learner.learn(slots[:, 0], plan.blocks, market_of(state).block_days)
