"""What worker processes save of a generation's time, and what crosses to and from them."""

import time
from dataclasses import dataclass, field

from benchmarks.results import Section
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.machine.memory_usage import tune_allocator
from eigen_core.task import open_data
from eigen_core.workers import LocalWorkers, WorkerExecutor

_WORKERS = 2
_GENERATIONS = 9
_CASES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("filter bank", 16, ()),
    ("filter bank", 64, ()),
    ("filter bank", 256, ("learner.gradient_steps=8",)),
    ("tcn", 16, ("network.encoder=tcn", "learner.gradient_steps=2", "learner.block_bars=256")),
)


def run() -> Section:
    tune_allocator()
    return Section(
        title="Workers on this machine",
        method=f"Generations 2 to {_GENERATIONS} of preset ddpg (32 gradient steps; 8 with 256 agents, 2 with tcn "
        f"in blocks of 256 days), in this process and on {_WORKERS} workers by turns, one thread each; the least time "
        "of each, since what else the machine does only adds to it. The weights after each generation are compared to "
        "the bit. Sent and received: bytes of the arrays that cross.",
        columns=(
            "",
            "evaluate and train: s",
            f"on {_WORKERS} workers: s",
            "times as fast",
            "sent: MB a generation",
            "received: MB a generation",
            "sent and received of an agent: kB",
        ),
        rows=[_compare(*case) for case in _CASES],
    )


@dataclass
class _Side:
    state: TrainingState
    seconds: list[float] = field(default_factory=list)

    def advance(self) -> str:
        started = time.perf_counter()
        evaluate(self.state)
        train(self.state)
        self.seconds.append(time.perf_counter() - started)
        return evolve(self.state).weights_sha256


def _compare(name: str, agents: int, assignments: tuple[str, ...]) -> list[str]:
    config = load_config("ddpg", [f"population.size={agents}", "replay.capacity=200000", *assignments])
    content = open_data(config).content
    alone, led = (_Side(start_training(config, content)) for _ in range(2))
    fingerprint = led.state.task.fingerprint
    with (
        LocalWorkers(_WORKERS) as workers,
        WorkerExecutor("benchmark", config, content, fingerprint, workers.address) as executor,
    ):
        while len(executor.addresses()) < _WORKERS:
            time.sleep(0.1)
        led.state.executor = executor
        before = (0, 0)
        for generation in range(_GENERATIONS):
            if generation == 1:
                before = (executor.sent_bytes, executor.exchanged_bytes)
            assert alone.advance() == led.advance()
        crossed = executor.sent_bytes - before[0], executor.exchanged_bytes - before[1]
    sent, exchanged = (amount / (_GENERATIONS - 1) for amount in crossed)
    one, two = min(alone.seconds[1:]), min(led.seconds[1:])
    return [
        f"{name}, {agents} agents",
        f"{one:.2f}",
        f"{two:.2f}",
        f"{one / two:.2f}",
        f"{sent / 1e6:.1f}",
        f"{(exchanged - sent) / 1e6:.1f}",
        f"{exchanged / agents / 1e3:,.0f}",
    ]
