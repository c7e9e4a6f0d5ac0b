"""Made-up histories that look like those of real runs."""

import hashlib

import numpy as np

from eigen_core.common.records import GenerationRecord, Lineage, PhaseMemory, Telemetry


def make_run(
    generations: int = 25,
    agents: int = 16,
    seed: int = 1,
    *,
    first_learning: int = 4,
    capacity: int = 50_000,
    start: float = -9_000.0,
    skill: float = 900.0,
    loss: float = 800.0,
) -> tuple[list[GenerationRecord], list[Telemetry]]:
    """Return records and telemetry of a run whose agents begin near `start` and approach `skill`."""
    rng = np.random.default_rng(seed)
    talent = rng.uniform(0.0, 0.25, agents)
    history: list[GenerationRecord] = []
    telemetry: list[Telemetry] = []
    champion = (-np.inf, 0, 0)
    champion_talent = 0.0
    for generation in range(1, generations + 1):
        fitness = _reward(talent, rng, start, skill, loss)
        validations = _reward(talent, rng, start, 0.7 * skill, loss)
        newcomer = int(np.argmax(validations))
        if validations[newcomer] > champion[0]:
            champion = (float(validations[newcomer]), generation, newcomer)
            champion_talent = float(talent[newcomer])
        talent = np.clip(talent + rng.normal(0.012, 0.01, agents), 0.0, 1.0)
        descent, talent = _breed(fitness, talent, rng, champion, champion_talent)
        learning = generation >= first_learning
        history.append(
            GenerationRecord(
                generation=generation,
                fitness=tuple(fitness.tolist()),
                best_fitness=float(fitness.max()),
                mean_fitness=float(fitness.mean()),
                validations=tuple(validations.tolist()),
                validation=float(validations.max()),
                champion_validation=champion[0],
                champion_score=champion[0],
                champion_generation=champion[1],
                champion_agent=champion[2],
                learning=_learning(generation - first_learning, rng) if learning else None,
                trading={"trades": 60.0, "win_rate": 0.5, "idle_days": 12.0, "fees": 8.0},
                transitions=min(capacity, generation * agents * 145),
                replay_capacity=capacity,
                noise_scale=0.1 * 0.99**generation,
                evolution={"mutation_rate": 0.1, "mutation_std": 0.01},
                descent=descent,
                weights_sha256=hashlib.sha256(bytes([generation % 256, seed % 256])).hexdigest(),
                replay_sha256=hashlib.sha256(bytes([seed % 256, generation % 256])).hexdigest(),
            )
        )
        telemetry.append(_telemetry(generation, learning, rng))
    return history, telemetry


def _reward(talent: np.ndarray, rng: np.random.Generator, start: float, skill: float, loss: float) -> np.ndarray:
    reward = skill * (talent - 0.25) / 0.75 + rng.normal(0.0, 0.06 * skill, len(talent))
    unlucky = rng.random(len(talent)) < 0.15
    reward -= unlucky * rng.exponential(loss, len(talent)) * 2.0
    return np.where(talent < 0.12, start - rng.exponential(abs(start) * 0.2, len(talent)), reward)


def _breed(
    fitness: np.ndarray,
    talent: np.ndarray,
    rng: np.random.Generator,
    champion: tuple[float, int, int],
    champion_talent: float,
) -> tuple[tuple[Lineage, ...], np.ndarray]:
    agents = len(fitness)
    ranked = np.argsort(-fitness, kind="stable")
    elites, offspring = max(1, agents // 2), round(0.375 * agents)
    descent: list[Lineage] = []
    bred = np.empty(agents)
    for agent in range(agents):
        if agent < elites:
            parents: tuple[int, ...] = (int(ranked[agent]),)
            descent.append(Lineage(agent=agent, origin="elite", parents=parents))
        elif agent < elites + offspring:
            parents = (int(rng.choice(ranked[:elites])), int(rng.choice(ranked[:elites])))
            blend = float(rng.uniform(0.3, 0.7))
            descent.append(Lineage(agent=agent, origin="offspring", parents=parents, blend=blend))
        else:
            parents = (int(rng.choice(ranked[:elites])),)
            descent.append(Lineage(agent=agent, origin="mutant", parents=parents))
        bred[agent] = talent[list(parents)].mean() + (rng.normal(0.0, 0.04) if agent >= elites else 0.0)
    if elites > 1 and champion[2] not in ranked[:elites]:
        descent[elites - 1] = Lineage(agent=elites - 1, origin="champion", parents=(champion[2],))
        bred[elites - 1] = champion_talent
    return tuple(descent), np.clip(bred, 0.0, 1.0)


def _learning(step: int, rng: np.random.Generator) -> dict[str, float]:
    return {
        "gradient_steps": 32,
        "critic_loss": float(40.0 * np.exp(-step / 6.0) + 1.5 + rng.uniform(0.0, 0.6)),
        "actor_loss": float(4.0 - 9.0 * (1.0 - np.exp(-step / 8.0)) + rng.normal(0.0, 0.3)),
        "value": float(-5.0 + 8.0 * (1.0 - np.exp(-step / 8.0)) + rng.normal(0.0, 0.3)),
        "critic_gradient_norm": float(30.0 * np.exp(-step / 5.0) + 2.0 + rng.uniform(0.0, 1.0)),
        "actor_gradient_norm": float(0.6 + rng.uniform(0.0, 0.2)),
    }


def _telemetry(generation: int, learning: bool, rng: np.random.Generator) -> Telemetry:
    resident = 612e6 + 4e6 * min(generation, 6) + rng.normal(0.0, 1e6)
    return Telemetry(
        generation=generation,
        evaluate_seconds=float(1.4 + rng.uniform(0.0, 0.2)),
        train_seconds=float(3.1 + rng.uniform(0.0, 0.4)) if learning else 0.01,
        evolve_seconds=0.05,
        checkpoint_seconds=float(0.2 + rng.uniform(0.0, 0.1)),
        rss_bytes=int(resident),
        rss_peak_bytes=int(resident + 60e6 + rng.uniform(0.0, 20e6)),
        phases=_phases(generation, int(resident), rng),
    )


def _phases(generation: int, resident: int, rng: np.random.Generator) -> tuple[PhaseMemory, ...]:
    names = ("evaluate", "train", "evolve", "checkpoint", *(("plot",) if generation % 5 == 0 else ()))
    return tuple(
        PhaseMemory(
            phase=name,
            start_bytes=resident,
            peak_bytes=resident + int(rng.uniform(1e6, 80e6)),
            end_bytes=resident + int(rng.uniform(-5e6, 5e6)),
        )
        for name in names
    )
