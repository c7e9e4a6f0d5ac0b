"""A remote store chooses neither what a resume reads nor where it writes: this machine does."""

from pathlib import Path

import pytest
from store_cases import run_config, save_generations

from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.common.errors import InputError
from eigen_core.config import Config, merge
from eigen_core.runs.handle import Run, status_of
from flows.cli.common import RunOptions


@pytest.fixture(autouse=True)
def _another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine").mkdir()
    monkeypatch.chdir(tmp_path / "machine")
    monkeypatch.delenv("EIGEN_DATA", raising=False)


@pytest.fixture
def store(gcs_bucket: str) -> str:
    return f"{gcs_bucket}/prefix"


def with_data(config: Config, data: Path | None) -> Config:
    return Config.model_validate(merge(config.model_dump(), {"market": {"data": None if data is None else str(data)}}))


def test_what_the_store_says_is_not_followed(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, prices = tmp_path / "theirs", tmp_path / "theirs" / "prices.csv"
    save_generations(with_data(run_config(store, theirs / "local"), prices), "run", 1)
    theirs.rename(tmp_path / "another machine")
    theirs.mkdir()
    prices.write_text("date,close\n")
    opened = Run.open(store, "run")
    location, config = opened.location, opened.config
    assert (location.root.is_relative_to(Path.cwd() / "runs"), config.checkpoint.local) == (True, "runs")
    assert status_of(store, "run").folder == location.root / "run"
    refusal = r"'run' was trained on 'prices.csv', and this machine does not know .* with --data"
    with pytest.raises(InputError, match=refusal):
        Run.open(store, "run").config_to_resume()
    own = tmp_path / "own.csv"
    assert Run.open(store, "run").config_to_resume(str(own)).market.data == str(own)
    assert Run.open(store, "run").config_to_resume("own.csv").market.data == str(Path.cwd() / "own.csv")
    monkeypatch.setenv("EIGEN_DATA", str(own))
    resumed = Run.open(store, "run").config_to_resume()
    assert resumed.market.data == str(own)
    Run.open(store, "run").require_same_settings(resumed)
    with pytest.raises(InputError, match=r"market\.data differs"):
        Run.open(store, "run").require_same_settings(with_data(resumed, None))
    assert list(theirs.iterdir()) == [prices]


def test_a_run_on_the_bundled_prices_is_resumed_anywhere(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_generations(run_config(store, tmp_path / "theirs"), "run", 1)
    (tmp_path / "theirs").rename(tmp_path / "another machine")
    save_generations(with_data(run_config(store, tmp_path / "theirs"), Path("us5")), "named", 1)
    monkeypatch.setenv("EIGEN_DATA", "elsewhere.csv")
    assert Run.open(store, "run").config_to_resume().market.data is None
    assert Run.open(store, "named").config_to_resume().market.data == "us5"
    assert Run.open(store, "run").config_to_resume("us5").market.data == "us5"
    assert RunOptions(data="us5").settings() == ["market.data=us5"]


def test_a_machine_remembers_its_own(store: str, tmp_path: Path) -> None:
    local = "../scratch"
    (prices := tmp_path / "prices.csv").write_text("date,close\n")
    config = with_data(run_config(store, Path(local)), prices)
    Run(config.checkpoint, "run").begin(config)
    assert Run.open(store, "run", {"checkpoint": {"local": local}}).config_to_resume() == config
    # A stored configuration chooses no folder here, even if this machine has used it.
    assert Run.open(store, "run").location.root.is_relative_to(tmp_path / "machine" / "runs")
    # Another machine goes on with it, under its own paths.
    theirs = with_data(run_config(store, tmp_path / "theirs"), tmp_path / "theirs" / "prices.csv")
    save_generations(theirs, "run", 1)
    (tmp_path / "theirs").rename(tmp_path / "another machine")
    location = RunLocation.of(config.checkpoint, "run")
    (memory,) = (tmp_path / "machine" / local).rglob(".own/run.json")
    assert memory.parent.parent == location.root
    assert Run.open(store, "run", {"checkpoint": {"local": local}}).config_to_resume().market.data == str(prices)
    for content in ("", "{}", memory.read_text().replace("prices", "prizes")):
        memory.write_text(content)
        with pytest.raises(InputError, match="this machine does not know"):
            Run.open(store, "run", {"checkpoint": {"local": local}}).config_to_resume()


def test_data_that_have_moved_are_given_again(tmp_path: Path) -> None:
    (prices := tmp_path / "prices.csv").write_text("date,close\n")
    store = str(tmp_path / "store")
    config = with_data(run_config(store, tmp_path), prices)
    Run(config.checkpoint, "run").begin(config)
    assert Run.open(store, "run").config_to_resume().market.data == str(prices)
    moved = tmp_path / "moved.csv"
    with pytest.raises(InputError, match=r"market\.data differs"):
        Run.open(store, "run").require_same_settings(Run.open(store, "run").config_to_resume(str(moved)))
    prices.rename(moved)
    with pytest.raises(InputError, match="it is not there any more: give it with --data"):
        Run.open(store, "run").config_to_resume()
    Run.open(store, "run").require_same_settings(Run.open(store, "run").config_to_resume(str(moved)))
    with pytest.raises(InputError, match=r"market\.data differs"):
        Run.open(store, "run").require_same_settings(with_data(config, Path("us5")))


def test_days_of_a_store_that_are_no_dates_are_neither_used_nor_shown(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "eigen_core")
    config = run_config(store, tmp_path / "theirs")
    save_generations(config, "run", 1)
    origin = {"files": "other", "first": "\x1b[2J", "last": "2020-01-02"}
    monkeypatch.setattr(RunContents, "document", lambda *_: {"origin": origin})
    assert Run.open(store, "run").on_its_days(config) == config
    assert not caplog.text
