"""Made-up histories that look like those of real runs."""

import numpy as np
import record_cases

from eigen_core.common.records import GenerationRecord, Lineage, PhaseMemory, Telemetry


def make_run(
    generations: int = 25,
    agents: int = 16,
    *,
    first_learning: int = 4,
    capacity: int = 50_000,
    start: float = -9_000.0,
    loss: float = 800.0,
) -> tuple[list[GenerationRecord], list[Telemetry]]:
    """Return records and telemetry of a run whose agents begin near `start` and approach a reward of 900."""
    rng = np.random.default_rng(1)
    history: list[GenerationRecord] = []
    telemetry: list[Telemetry] = []
    champion = (-np.inf, 0, 0)
    for generation in range(1, generations + 1):
        reached = start + (900.0 - start) * min(1.0, generation / 12)
        fitness, validations = (
            reached + rng.normal(0.0, 60.0, agents) - (rng.random(agents) < 0.15) * rng.exponential(2.0 * loss, agents)
            for _ in range(2)
        )
        best = int(np.argmax(validations))
        champion = max(champion, (float(validations[best]), generation, best))
        learning = generation >= first_learning
        history.append(
            record_cases.record(generation).model_copy(
                update={
                    "fitness": tuple(fitness.tolist()),
                    "best_fitness": float(fitness.max()),
                    "mean_fitness": float(fitness.mean()),
                    "validations": tuple(validations.tolist()),
                    "validation": float(validations.max()),
                    "champion_validation": champion[0],
                    "champion_score": champion[0],
                    "champion_generation": champion[1],
                    "champion_agent": champion[2],
                    "learning": _learning(generation - first_learning, rng) if learning else None,
                    "transitions": min(capacity, generation * agents * 145),
                    "replay_capacity": capacity,
                    "descent": _descent(fitness, champion[2], rng),
                    "weights_sha256": f"{generation:064x}",
                    "replay_sha256": f"{generation + 1:064x}",
                }
            )
        )
        telemetry.append(_telemetry(generation, learning, rng))
    return history, telemetry


def _descent(fitness: np.ndarray, champion: int, rng: np.random.Generator) -> tuple[Lineage, ...]:
    """Half of the agents are elites, the champion the last of them; three eighths are offspring, the rest mutants."""
    ranked, agents = np.argsort(-fitness, kind="stable").tolist(), len(fitness)
    elites, offspring = max(1, agents // 2), round(0.375 * agents)
    descent = [Lineage(agent=agent, origin="elite", parents=(ranked[agent],)) for agent in range(elites)]
    if elites > 1 and champion not in ranked[:elites]:
        descent[-1] = Lineage(agent=elites - 1, origin="champion", parents=(champion,))
    for agent in range(elites, agents):
        first, second = (int(rng.choice(ranked[:elites])) for _ in range(2))
        if agent < elites + offspring:
            descent.append(Lineage(agent=agent, origin="offspring", parents=(first, second), blend=0.4))
        else:
            descent.append(Lineage(agent=agent, origin="mutant", parents=(first,)))
    return tuple(descent)


def _learning(step: int, rng: np.random.Generator) -> dict[str, float]:
    names = ("critic_loss", "actor_loss", "value", "critic_gradient_norm", "actor_gradient_norm")
    return {"gradient_steps": 32} | {
        name: float(40.0 * np.exp(-step / 6.0) / place + rng.uniform(0.5, 1.0)) for place, name in enumerate(names, 1)
    }


def _telemetry(generation: int, learning: bool, rng: np.random.Generator) -> Telemetry:
    resident = int(612e6 + 4e6 * min(generation, 6) + rng.normal(0.0, 1e6))
    names = ("evaluate", "train", "evolve", "checkpoint", *(("plot",) if generation % 5 == 0 else ()))
    phases = [
        PhaseMemory(
            phase=name,
            start_bytes=resident,
            peak_bytes=resident + int(rng.uniform(1e6, 80e6)),
            end_bytes=resident + int(rng.uniform(-5e6, 5e6)),
        )
        for name in names
    ]
    seconds = float(3.1 + rng.uniform(0.0, 0.4)) if learning else 0.01
    measured = {"train_seconds": seconds, "checkpoint_seconds": 0.2, "phases": tuple(phases)}
    memory = {"rss_bytes": resident, "rss_peak_bytes": int(resident + 60e6 + rng.uniform(0.0, 20e6))}
    return record_cases.telemetry(generation).model_copy(update=measured | memory)
