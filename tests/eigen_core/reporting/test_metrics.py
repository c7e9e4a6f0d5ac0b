"""Which metrics trackers receive, and how a package that is missing is refused."""

import sys

import pytest
from record_cases import record, telemetry

from eigen_core.common.errors import InputError
from eigen_core.config.loading import load_config
from eigen_core.config.values import tracker_class
from eigen_core.reporting.trackers import metrics_of, metrics_since


def test_metrics_are_the_numbers_of_the_records_under_their_names() -> None:
    learned = record(2).model_copy(update={"learning": {"critic_loss": 0.25, "gradient_steps": 4}})
    ((generation, metrics),) = metrics_since(1, [record(1), learned], [telemetry(2)])
    assert generation == 2
    assert metrics["generation/champion_validation"] == 0.5
    assert metrics["generation/transitions"] == 20
    assert metrics["trading/win_rate"] == 0.5
    assert metrics["learning/critic_loss"] == 0.25
    assert metrics["telemetry/train_seconds"] == 2.0
    assert metrics["telemetry/rss_peak_bytes"] == 2e8
    assert not {"generation/generation", "generation/weights_sha256", "telemetry/generation"} & metrics.keys()
    # Nothing is said of what is not known.
    assert "telemetry/checkpoint_seconds" not in metrics


def test_a_generation_without_telemetry_has_the_metrics_of_its_record() -> None:
    found = dict(metrics_since(0, [record(1), record(2)], [telemetry(2)]))
    assert found[1] == metrics_of(record(1))
    assert found[2].keys() > metrics_of(record(2)).keys()
    assert list(metrics_since(2, [record(1), record(2)], [telemetry(2)])) == []


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_package_that_is_missing_is_refused_with_its_extra(
    tracker: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"eigen_core.reporting.{tracker}", raising=False)

    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named '{name}'", name=package)

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(
        InputError, match=rf"{tracker} needs the package {package}.*pip install 'eigen-trader\[{tracker}\]'"
    ):
        tracker_class(tracker)


def test_a_tracker_that_does_not_exist_is_refused() -> None:
    assert load_config(None, ["reporting.trackers=tensorboard,mlflow"]).reporting.trackers == ("tensorboard", "mlflow")
    with pytest.raises(InputError, match=r"reporting\.trackers: .*give a list of names out of tensorboard, mlflow"):
        load_config(None, ["reporting.trackers=wandb"])
