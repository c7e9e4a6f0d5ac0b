"""The history of a run as a pandas frame."""

from collections.abc import Sequence

import pandas as pd

from eigen_core.records import GenerationRecord, Telemetry

_NESTED = {"fitness", "validations", "learning", "trading", "descent"}
_TIMES = ("evaluate_seconds", "train_seconds", "evolve_seconds", "checkpoint_seconds", "seconds")
_MEMORY = ("rss_bytes", "rss_peak_bytes", "device_peak_bytes")


def history_frame(
    history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry] = (), known: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the scalars of a run as a frame indexed by generation; what is not known is NaN.

    Columns are the fields of `GenerationRecord`, what it has of learning and trading with `learning_` or `trading_` in
    front, and those of `Telemetry` with the whole time, `seconds`.

    Args:
        history: records of the generations.
        telemetry: what they took.
        known: columns of learning and trading that are there even if no generation has them.
    """
    measured = {entry.generation: entry for entry in telemetry}
    rows = [_flat(record, measured.get(record.generation)) for record in history]
    scalars = [name for name in GenerationRecord.model_fields if name not in _NESTED]
    named = (name for row in rows for name in row if name not in (*scalars, *_TIMES, *_MEMORY))
    nested = dict.fromkeys((*known, *named))
    frame = pd.DataFrame(rows, columns=[*scalars, *nested, *_TIMES, *_MEMORY])
    return frame.astype(dict.fromkeys((*nested, *_TIMES, *_MEMORY), "float64")).set_index("generation")


def _flat(record: GenerationRecord, telemetry: Telemetry | None) -> dict[str, float | str | None]:
    return {
        **record.model_dump(exclude=_NESTED),
        **{f"learning_{name}": value for name, value in (record.learning or {}).items()},
        **{f"trading_{name}": value for name, value in record.trading.items()},
        **({} if telemetry is None else {name: getattr(telemetry, name) for name in (*_TIMES, *_MEMORY)}),
    }
