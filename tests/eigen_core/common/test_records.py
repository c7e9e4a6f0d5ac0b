"""Records: frozen, exact as JSON text, and a log of them that never changes."""

import json
import math

import pytest
from record_cases import record, telemetry
from scipy.special import stdtrit

from eigen_core.common.records import GenerationRecord, HoldoutResult, RecordLog, Telemetry, student_quantile


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_log_is_a_sequence_of_its_records_that_does_not_change(number: int) -> None:
    *records, further = (telemetry(generation) for generation in range(1, number + 2))
    log = RecordLog.of(Telemetry, records)
    longer = log.followed_by(further)
    assert list(log) == records
    assert list(longer) == [*records, further]
    assert longer[-1] == further
    assert longer[1:] == [*records, further][1:]
    assert longer.without_last() == log
    assert longer != log


def test_a_holdout_result_keeps_the_order_of_its_statistics_and_earlier_ones_are_read() -> None:
    result = HoldoutResult(
        generation=3,
        slices=(1,),
        champion_rewards=(2.0,),
        champion_statistics=(("trades", 3.0), ("win_rate", 0.5), ("fees", 1.0)),
        random_rewards=(1.0,),
    )
    document = json.loads(json.dumps(result.model_dump(mode="json"), sort_keys=True))
    assert HoldoutResult.model_validate(document) == result
    earlier = {**document, "champion_trades": 3.0, "champion_win_rate": 0.5}
    del earlier["champion_statistics"]
    read = HoldoutResult.model_validate(earlier)
    assert read.champion_statistics == (("trades", 3.0), ("win_rate", 0.5))


def test_a_record_from_when_the_genetic_algorithm_was_the_only_method_is_read() -> None:
    now = record(3)
    document = now.model_dump(mode="json")
    earlier = {name: value for name, value in document.items() if name != "evolution"} | document["evolution"]
    assert {"mutation_rate", "mutation_std"} <= earlier.keys()
    assert GenerationRecord.model_validate_json(json.dumps(earlier)) == now


@pytest.mark.parametrize("freedom", [*range(1, 40), 99_999, math.inf])
def test_an_interval_is_that_of_students_t(freedom: float) -> None:
    assert student_quantile(freedom) == pytest.approx(stdtrit(freedom, 0.975), rel=1e-5)
