"""Types of settings: bounded numbers, dates, and registered tasks, learners, population methods, encoders, trackers."""

from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from eigen_core.common.errors import needs_extra
from eigen_core.common.text import quoted

# The bounds are far above useful values, and low enough that arithmetic on settings cannot overflow.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000)]
Duration = Annotated[str, Field(pattern=r"^[1-9]\d{0,3}[mhd]$")]
"""A number of minutes, hours or days, such as `30m`, `6h` or `60d`."""
Span = Count | Duration
SpanOrZero = CountOrZero | Duration
"""A number of bars, or the bars within a duration."""
Rows = Annotated[int, Field(ge=1, le=1_000_000_000)]
Width = Annotated[int, Field(ge=1, le=65_536)]
Text = Annotated[str, Field(max_length=4_096, pattern=r"^[^\x00-\x1f\x7f]*$")]


def _real_date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("date", "no date") from None
    return text


Date = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d\d-\d\d$", json_schema_extra={"format": "date"}),
    AfterValidator(_real_date),
]
DateOrBar = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d)?$", json_schema_extra={"format": "date"}),
    AfterValidator(_real_date),
]
"""A date, or the end of a bar within a day."""

_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}


def seconds_of(duration: str) -> int:
    """Return the seconds of a `Duration`."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]


# Not inline: the type checker then accepts a dictionary for a section, as pydantic does.
_STRICT = ConfigDict(strict=True)


class Section(BaseModel):
    """A frozen section of the configuration that rejects unknown keys and values of the wrong type.

    `ordered` lists triples: two dotted keys, the first of which must not exceed the second, and the end of the error.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True, **_STRICT
    )
    ordered: ClassVar[tuple[tuple[str, str, str], ...]] = ()

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        for smaller, larger, reason in self.ordered:
            least, most = (getattr(self, key.rpartition(".")[2]) for key in (smaller, larger))
            if most is not None and least > most:
                raise ValueError(f"{smaller} {least:,} is above {larger} {most:,}: {reason}")
        return self


TASKS: Mapping[str, str] = {
    "market": "eigen_core.task.market:MarketTask",
    "portfolio": "eigen_core.task.portfolio:PortfolioTask",
    "gym": "eigen_core.task.gymnasium:GymnasiumTask",
}
BACKTESTS: Mapping[str, str] = {
    "market": "eigen_core.judging.backtest:MarketBacktest",
    "portfolio": "eigen_core.judging.backtest:PortfolioBacktest",
}
"""Class of the backtest of each task that has prices."""
LEARNERS: Mapping[str, str] = {
    "ddpg": "eigen_core.learning.ddpg:DdpgLearner",
    "td3": "eigen_core.learning.ddpg:Td3Learner",
    "sac": "eigen_core.learning.sac:SacLearner",
    "ppo": "eigen_core.learning.ppo:PpoLearner",
    "counterfactual": "eigen_core.learning.counterfactual:CounterfactualLearner",
    "direct": "eigen_core.learning.direct:DirectLearner",
}
METHODS: Mapping[str, str] = {
    "genetic": "eigen_core.learning.genetic:GeneticMethod",
    "cem": "eigen_core.learning.cem:CemMethod",
    "erl": "eigen_core.learning.genetic:ErlMethod",
    "pbt": "eigen_core.learning.pbt:PbtMethod",
}
ENCODERS: Mapping[str, str] = {
    "filter_bank": "eigen_core.networks.encoders:FilterBankEncoder",
    "tcn": "eigen_core.networks.tcn:TcnEncoder",
}
TRACKERS: Mapping[str, str] = {
    "tensorboard": "eigen_core.reporting.trackers:TensorBoardTracker",
    "mlflow": "eigen_core.reporting.trackers:MlflowTracker",
}
"""Class of each experiment tracker; it needs the package of the same name, which the extra of that name installs."""


def _task_exists(name: str) -> str:
    kind, _, of_task = name.partition(":")
    if kind not in TASKS or bool(of_task) != (kind == "gym"):
        raise ValueError(f"task: there is no task {quoted(name)}: give {TASK_NAMES}")
    return name


TASK_NAMES = "market, portfolio, or gym: and a Gymnasium environment, for example gym:Pendulum-v1 or gym:module:Class"
TaskName = Annotated[str, Field(max_length=4_096), AfterValidator(_task_exists)]

if TYPE_CHECKING:
    LearnerName = str
    MethodName = str
    EncoderName = str
    TrackerName = str
else:
    LearnerName = Literal[tuple(LEARNERS)]
    MethodName = Literal[tuple(METHODS)]
    EncoderName = Literal[tuple(ENCODERS)]
    TrackerName = Literal[tuple(TRACKERS)]


def task_choice(task: str) -> str:
    """Return the key of `TASKS` that a task's name begins with: `gym` for `gym:CartPole-v1`."""
    return task.partition(":")[0]


def has_prices(task: str) -> bool:
    """Whether a task uses the prices of a panel, and so the sections market, trading and account."""
    return task_choice(task) in BACKTESTS


def load_class(choices: Mapping[str, str], name: str) -> object:
    """Import and return the class of `name` in a table of this module; only when called: it may import torch."""
    return resolve_name(choices[name])


def tracker_class(name: str) -> Any:  # noqa: ANN401 - a `Tracker`, which is above this package
    """Return the class of a tracker in `TRACKERS`; raise `InputError` if the package that it needs is missing."""
    with needs_extra(name, f"reporting.trackers: {name}", f", or leave {name} out"):
        import_module(name)
    return load_class(TRACKERS, name)
