"""The history of a run as a pandas frame."""

from collections.abc import Sequence

import pandas as pd

from eigen_core.records import GenerationRecord, LearningStatistics, Telemetry, TradingStatistics

_NESTED = {"fitness", "validations", "learning", "trading", "descent"}
_TIMES = ("evaluate_seconds", "train_seconds", "evolve_seconds", "checkpoint_seconds", "seconds")
_MEMORY = ("rss_bytes", "rss_peak_bytes", "device_peak_bytes")


def history_frame(history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry] = ()) -> pd.DataFrame:
    """Return the scalars of a run as a frame indexed by generation; what is not known is NaN.

    Columns are the fields of `GenerationRecord`, those of its statistics with `learning_` or `trading_` in front, and
    those of `Telemetry` with the whole time, `seconds`.
    """
    known = {entry.generation: entry for entry in telemetry}
    rows = [_flat(record, known.get(record.generation)) for record in history]
    frame = pd.DataFrame(rows, columns=_columns())
    return frame.astype(dict.fromkeys((*_learning_columns(), *_TIMES, *_MEMORY), "float64")).set_index("generation")


def _columns() -> list[str]:
    return [
        *(name for name in GenerationRecord.model_fields if name not in _NESTED),
        *_learning_columns(),
        *(f"trading_{name}" for name in TradingStatistics.model_fields),
        *_TIMES,
        *_MEMORY,
    ]


def _learning_columns() -> list[str]:
    return [f"learning_{name}" for name in LearningStatistics.model_fields]


def _flat(record: GenerationRecord, telemetry: Telemetry | None) -> dict[str, float | str | None]:
    learning = {} if record.learning is None else record.learning.model_dump()
    return {
        **record.model_dump(exclude=_NESTED),
        **{f"learning_{name}": value for name, value in learning.items()},
        **{f"trading_{name}": value for name, value in record.trading.model_dump().items()},
        **({} if telemetry is None else {name: getattr(telemetry, name) for name in (*_TIMES, *_MEMORY)}),
    }
