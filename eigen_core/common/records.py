"""Results of generations and of the holdout evaluation as JSON records, and the ancestry of agents in them."""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from eigen_core.common.text import change

_FEW_FREEDOMS = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)
_NORMAL, _EXPANSION = 1.959963985, (2.3722712, 2.8224986, 2.5558497, 1.5895341)

Origin = Literal[
    "initial", "elite", "offspring", "mutant", "champion", "learner", "copy", "sample", "mean", "immigrant"
]


Words = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]
"""A text that messages may contain as it is, whoever wrote it: no control characters, not too long."""

Printable = Annotated[str, Field(pattern=r"^[^\p{C}]*$")]
"""A text of any length and script without control characters, such as a host's name or the URL of a store."""


@cache
def _every_field(kind: type["Record"]) -> set[str]:
    return set(kind.model_fields)


class Record(BaseModel):
    """Base of immutable pydantic models that reject unknown keys, infinity and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def model_post_init(self, context: object, /) -> None:  # noqa: ARG002 - pydantic's signature
        """Let all records of a class share `model_fields_set`: a set for each would take half of a history's memory."""
        object.__setattr__(self, "__pydantic_fields_set__", _every_field(type(self)))


@dataclass(frozen=True, slots=True)
class Curve:
    """A statistic of learning, such as a loss; `GenerationRecord.learning` has its mean over agents and steps."""

    name: str
    description: str

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Origin of an agent of the generation after its `GenerationRecord`. It takes 200 bytes, as a `Record` 800.

    Attributes:
        agent: index in the next generation's population.
        origin: how the agent was made.
        parents: indices in the population of the record's generation; of a reinjected champion, its index in the
            record's `champion_generation`; of a sample of a distribution, the fittest agent that updated the
            distribution; empty for an immigrant, the champion of another run (only in runs of earlier versions).
        blend: share (0 to 1) of the first parent in the weights of an offspring; None for other origins.
        genes: name -> value of the settings that `pbt` chose for this agent, or of its genes (`evolution.evolves`).
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    agent: int
    origin: Origin
    parents: tuple[int, ...]
    blend: float | None = None
    genes: dict[str, float] | None = None


def student_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t to five digits; part of a degree of freedom counts as none.

    scipy's function takes 0.3 CPU seconds to load, as long as a run's table takes to print. Few degrees of freedom are
    in a table; of more, it is the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5).
    """
    if freedom < 1 + len(_FEW_FREEDOMS):
        return _FEW_FREEDOMS[max(int(freedom), 1) - 1]
    return _NORMAL + sum(term / freedom**power for power, term in enumerate(_EXPANSION, 1))


class Excess(Record):
    """Mean return of an agent beyond the market's on the same days, with its standard error.

    For single trades, the market is the mean return of all assets, in percent of the price paid. For portfolios, it is
    a portfolio of equal weights with the same exposure (invested share), in percent of the account per year.
    """

    mean: float
    """Mean excess (%), per trade or per year as `per` says."""
    standard_error: Annotated[float, Field(ge=0.0)]
    """Standard error of `mean` (%)."""
    freedom: Annotated[float, Field(gt=0.0)] | None = None
    """Degrees of freedom of Student's t; None (not estimated, or an earlier version): infinitely many."""
    trades: Annotated[int, Field(ge=2)]
    """Number of trades, or of days if `per` is "year"."""
    per: Literal["trade", "year"] = "trade"

    @property
    def student(self) -> tuple[float, float]:
        """Error (%) and degrees of freedom f of Student's t, by which intervals and tests judge `mean`.

        The error is `standard_error` with the variance factor (f + 1) / f for few clusters (Cameron and Miller 2015, "A
        practitioner's guide to cluster-robust inference", section VI).
        """
        freedom = self.freedom or math.inf
        return (1.0 + 1.0 / freedom) ** 0.5 * self.standard_error, freedom

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the 95 % confidence interval (%)."""
        error, freedom = self.student
        width = student_quantile(freedom) * error
        return self.mean - width, self.mean + width

    @property
    def short(self) -> str:
        """Mean ± half of the width of the 95 % interval, for example "+0.12 ± 0.31 %"."""
        return f"{change(self.mean)} ± {self.interval[1] - self.mean:.2f} %"

    @property
    def numbers(self) -> dict[str, float]:
        return {"mean": self.mean, "standard_error": self.standard_error, "trades": self.trades}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{change(self.mean)} % a {self.per} (95 % interval {change(low)} to {change(high)})"


class GenerationRecord(Record):
    """Results of a generation without times and memory (`Telemetry`), bit for bit equal if a run is repeated."""

    generation: Annotated[int, Field(ge=1)]
    fitness: tuple[float, ...]
    """Fitness of each agent, a mean of rewards of its training episodes (see `fitness_and_scores`)."""
    best_fitness: float
    mean_fitness: float
    validations: tuple[float, ...]
    """Validation fitness of each agent, a mean of rewards of its validation episodes."""
    validation: float
    """Largest of `validations`."""
    champion_validation: float
    """Validation fitness of the champion, the agent with the best score so far."""
    champion_score: float
    """Score by which the champion was chosen: its validation fitness unless `evaluation.champion_validation_share` or
    `champion_standard_errors` change it (episode reward)."""
    champion_generation: int
    """Generation in which the champion was found."""
    champion_agent: int
    """Index of the champion in the population of that generation."""
    champion_excess: Excess | None = None
    """Excess of the champion's validation episodes over the market; None if there is no market, or under two trades."""
    learning: dict[str, float] | None
    """Gradient steps per agent (`gradient_steps`), and the mean of each `Curve` by name; None if no agent learned."""
    trading: dict[str, float]
    """Name -> value of the statistics of the training episodes (`Task.statistics`), such as the number of trades."""
    transitions: int
    """Number of transitions in the replay buffer."""
    replay_capacity: int
    noise_scale: float
    """Standard deviation of the exploration noise in this generation (fraction of an action's range)."""
    evolution: dict[str, float]
    """Name -> value of the statistics of the population method in this generation."""
    descent: tuple[Lineage, ...]
    """Origin of each agent of the next generation."""
    ancestors: tuple[int, ...] = ()
    """For each agent of the next generation, the index of its ancestor in the first one, along the parents with the
    larger share of the weights. Only from earlier versions of Eigen: empty, or negative (ancestor in another run)."""
    policy_distance: float | None = None
    """Mean distance between the actions of two agents after learning, over all pairs, on the same stored observations
    (fraction of an action's range); None until 16 observations can be sampled from the replay buffer."""
    weights_sha256: str
    """SHA-256 of the weights of the next generation's population (`tensors_sha256`)."""
    replay_sha256: str
    """SHA-256 of the replay buffer's tensors after this generation (`tensors_sha256`)."""

    @property
    def distinct_ancestors(self) -> int | None:
        return len(set(self.ancestors)) or None

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, document: object) -> object:
        """Accept records of earlier versions of Eigen, without `champion_score` or without `evolution`."""
        if not isinstance(document, dict):
            return document
        document = {"champion_score": document.get("champion_validation"), **document}
        if "evolution" not in document:
            named = ("mutation_rate", "mutation_std")
            document["evolution"] = {name: document.pop(name) for name in named if name in document}
        return document


class PhaseMemory(Record):
    """Memory of a phase of a generation (bytes); the attempts of a phase that was retried are combined."""

    phase: str
    start_bytes: Annotated[int, Field(ge=0)]
    """Resident memory of the run's process and its child processes at the phase's start."""
    peak_bytes: Annotated[int, Field(ge=0)]
    end_bytes: Annotated[int, Field(ge=0)]
    device_allocated_peak: Annotated[int, Field(ge=0)] = 0
    """Peak of the GPU memory that tensors occupied; 0 without a GPU."""
    device_reserved_peak: Annotated[int, Field(ge=0)] = 0
    """Peak of the GPU memory that torch reserved."""


class Telemetry(Record):
    """Time and memory of a generation, which differ if a run is repeated (unlike `GenerationRecord`)."""

    generation: Annotated[int, Field(ge=1)]
    evaluate_seconds: float
    train_seconds: float
    evolve_seconds: float
    checkpoint_seconds: float | None = None
    """None until the checkpoint is written."""
    rss_bytes: int
    """Resident memory of the run's process and its child processes after the phase `evolve` (bytes)."""
    rss_peak_bytes: int
    """Peak of that memory in the generation (bytes)."""
    exchanged_bytes: int = 0
    """Bytes of arrays sent between the run's process and its Dask workers in the generation."""
    phases: tuple[PhaseMemory, ...] = ()
    """Memory of the finished phases, in order. The copy in a checkpoint lacks the phase `checkpoint` and later ones."""

    @property
    def device_peak_bytes(self) -> int:
        """Peak of the GPU memory that torch reserved (bytes); 0 without a GPU."""
        return max((phase.device_reserved_peak for phase in self.phases), default=0)

    @property
    def seconds(self) -> float:
        """Time of the phases evaluate, train, evolve and checkpoint (seconds); checkpoint counts 0 while it is None."""
        return self.evaluate_seconds + self.train_seconds + self.evolve_seconds + (self.checkpoint_seconds or 0.0)


class HoldoutResult(Record):
    """Rewards of the champion and of random agents in the same holdout episodes, whose data training never uses."""

    generation: Annotated[int, Field(ge=0)]
    """Number of the newest generation when the champion was evaluated."""
    slices: tuple[int, ...]
    """Start of each holdout episode: index of its first day in the panel, or seed of a Gymnasium environment."""
    champion_rewards: tuple[float, ...]
    """The champion's reward in each episode."""
    champion_excess: Excess | None = None
    """Excess of the champion's holdout episodes over the market; None if there is no market, or under two trades."""
    champion_statistics: tuple[tuple[str, float], ...]
    """Name and value of each statistic of the champion's episodes, in the order of `Task.statistics`."""
    random_rewards: tuple[float, ...]
    """For each agent of the initial population, untrained, its mean reward over the same episodes."""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, document: object) -> object:
        """Accept results of earlier versions of Eigen, with fields `champion_trades` and `champion_win_rate`."""
        if not isinstance(document, dict) or "champion_trades" not in document:
            return document
        kept = dict(document)
        named = [name for name in ("trades", "win_rate") if f"champion_{name}" in kept]
        return {"champion_statistics": [(name, kept.pop(f"champion_{name}")) for name in named], **kept}

    @property
    def champion_reward(self) -> float:
        return fmean(self.champion_rewards)

    @property
    def random_reward(self) -> float:
        return fmean(self.random_rewards)

    @property
    def share_of_random_beaten(self) -> float:
        return fmean(reward < self.champion_reward for reward in self.random_rewards)


R = TypeVar("R", bound=Record)
T = TypeVar("T")


def _packed(record: Record) -> bytes:
    return zlib.compress(record.model_dump_json().encode())


@dataclass(frozen=True, repr=False)
class RecordLog(Sequence[R]):
    """An immutable sequence of records of class `kind`, held as compressed JSON text (`rows`) and parsed on access.

    Record objects would fragment the heap, so that the C library could not return freed memory to the system.
    """

    kind: type[R]
    rows: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, kind: type[R], records: Iterable[R]) -> "RecordLog[R]":
        return cls(kind, tuple(_packed(record) for record in records))

    @classmethod
    def of_lines(cls, kind: type[R], lines: Iterable[bytes]) -> "RecordLog[R]":
        return cls(kind, tuple(zlib.compress(line) for line in lines))

    def lines(self) -> Iterator[bytes]:
        return map(zlib.decompress, self.rows)

    def followed_by(self, record: R) -> "RecordLog[R]":
        return RecordLog(self.kind, (*self.rows, _packed(record)))

    def without_last(self) -> "RecordLog[R]":
        return RecordLog(self.kind, self.rows[:-1])

    def json(self) -> bytes:
        return b"[" + b",".join(self.lines()) + b"]"

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> list[R]: ...

    def __getitem__(self, index: int | slice) -> R | list[R]:
        if isinstance(index, slice):
            return [self._parsed(row) for row in self.rows[index]]
        return self._parsed(self.rows[index])

    def _parsed(self, row: bytes) -> R:
        return self.kind.model_validate_json(zlib.decompress(row))


class UnfitRecordsError(ValueError):
    """A document does not have the expected records; the message continues a sentence that begins with its name."""


_HISTORY = TypeAdapter(list[GenerationRecord])
_TELEMETRY = TypeAdapter(list[Telemetry])


def parse_history(document: JsonValue | bytes, generation: int) -> list[GenerationRecord]:
    """Parse the records of generations 1 to `generation`; `document` is parsed JSON, or JSON text (bytes).

    `UnfitRecordsError` if a record is missing or inconsistent, or does not have as many agents as the first.
    """
    history = parse(_HISTORY, document)
    if [record.generation for record in history] != list(range(1, generation + 1)):
        raise UnfitRecordsError(f"does not hold one record for each generation from 1 to {generation}")
    for record in history:
        if wrong := _unfit(record, len(history[0].fitness)):
            raise UnfitRecordsError(f"{wrong} (generation {record.generation})")
    return history


def _unfit(record: GenerationRecord, agents: int) -> str | None:
    """Return why a record does not describe a population of `agents` agents; None if it does."""
    if {len(record.fitness), len(record.validations), len(record.descent), len(record.ancestors) or agents} != {agents}:
        return f"does not describe {agents} agents"
    named = {record.champion_agent, *(parent for born in record.descent for parent in born.parents)}
    ancestors = {0, *record.ancestors}
    if min(named) < 0 or max(named | ancestors) >= agents or min(ancestors) < -record.generation:
        return f"names an agent that a population of {agents} does not have"
    if [born.agent for born in record.descent] != list(range(agents)):
        return "does not list the origins of all agents in order"
    if not 1 <= record.champion_generation <= record.generation:
        return f"has a champion of generation {record.champion_generation}, not of 1 to {record.generation}"
    return None


def parse_telemetry(document: JsonValue | bytes, generation: int) -> list[Telemetry]:
    """Parse the telemetry of generations up to `generation`; `document` is parsed JSON, or JSON text (bytes).

    `UnfitRecordsError` if records are repeated, out of order, or of a later generation. Missing ones are accepted.
    """
    telemetry = parse(_TELEMETRY, document)
    numbers = [0, *(record.generation for record in telemetry), generation + 1]
    if any(one >= other for one, other in pairwise(numbers)):
        raise UnfitRecordsError(f"does not hold records of generations 1 to {generation} in order")
    return telemetry


def parse(kind: TypeAdapter[T], document: JsonValue | bytes) -> T:
    """Validate `document`, parsed JSON or JSON text (bytes), as `kind`; raise `UnfitRecordsError` if it is not one."""
    try:
        return kind.validate_json(document) if isinstance(document, bytes) else kind.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnfitRecordsError(f"has an unexpected form ({where}: {first['msg']})") from error


class Member(NamedTuple):
    """An agent, by its generation and its index in the population of that generation."""

    generation: int
    agent: int


def origins(history: Sequence[GenerationRecord], generation: int) -> Mapping[int, Origin]:
    """Return index -> origin of the agents of `generation`; empty if the history lacks the generation before it."""
    record = record_of(history, generation - 1)
    return {} if record is None else {lineage.agent: lineage.origin for lineage in record.descent}


def record_of(history: Sequence[GenerationRecord], generation: int) -> GenerationRecord | None:
    """Return the record of a generation from a history of consecutive generations; None if the history lacks it."""
    index = generation - history[0].generation if history else -1
    return history[index] if 0 <= index < len(history) else None


def champion_path(history: Sequence[GenerationRecord]) -> list[Member]:
    """Return the champion and its ancestors along the parents with the larger share of the weights, oldest first."""
    if not history:
        return []
    newest = history[-1]
    path = [Member(newest.champion_generation, newest.champion_agent)]
    while (parent := _main_parent(history, path[-1])) is not None:
        path.append(parent)
    return path[::-1]


def ancestors_after(
    history: Sequence[GenerationRecord], descent: Sequence[Lineage], generation: int, champion_generation: int
) -> tuple[int, ...]:
    """Return, for each agent of `descent`, bred from `generation`, the index of its ancestor in the first generation.

    Of two parents, the one with the larger share of the weights leads to the ancestor. A reinjected champion is from
    `champion_generation`. If the record before the parents is missing (first generation) or has no `ancestors` (written
    by an earlier version of Eigen), the parents themselves are returned.
    """

    found = []
    before = {born: record_of(history, born - 1) for born in {generation, champion_generation}}
    for lineage in descent:
        record = before[champion_generation if lineage.origin == "champion" else generation]
        ancestors = record.ancestors if record else ()
        parent = lineage.agent if (main := main_parent(lineage)) is None else main
        found.append(ancestors[parent] if ancestors else parent)
    return tuple(found)


def main_parent(lineage: Lineage) -> int | None:
    """Return the parent with the larger share of an agent's weights (the first if equal); None without parents."""
    if not lineage.parents:
        return None
    closer_to_second = len(lineage.parents) > 1 and lineage.blend is not None and lineage.blend < 0.5
    return lineage.parents[closer_to_second]


def _main_parent(history: Sequence[GenerationRecord], child: Member) -> Member | None:
    record = record_of(history, child.generation - 1)
    if record is None:
        return None
    for lineage in record.descent:
        if lineage.agent == child.agent and (parent := main_parent(lineage)) is not None:
            # Only a reinjected champion can be more than one generation older than its child.
            return Member(record.champion_generation if lineage.origin == "champion" else record.generation, parent)
    return None


class Arithmetic(Record):
    """Processor and libraries that computed a generation; others may give other floating-point results."""

    processor: Words
    """Maker of the processor (GenuineIntel, AuthenticAMD), or name of the GPU."""
    instructions: Words
    """Vector instructions that torch's own kernels use (AVX2, AVX512); for a GPU, its compute capability."""
    blas: Words
    """Library that computes matrix products; for MKL with its mode, the value of MKL_CBWR (MKL AUTO,STRICT)."""
    torch: Words
    """Version of torch."""

    def __str__(self) -> str:
        return f"{self.processor} with {self.instructions}, {self.blas}, torch {self.torch}"
