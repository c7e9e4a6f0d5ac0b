"""Every look at days of the same symbols counts, whichever run it was made for, and what trials cost."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_cases import eigen
from hypothesis import given, settings, strategies as st
from memory_store import MemoryStore
from typer.testing import Result

from eigen_core.checkpoint.store import CHAIN_HEAD, EVALUATION_CHAIN, EVALUATION_LOG, Store, check_run_name
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.judging.trust import Claims, Trial, Trust, TrustTrials
from eigen_core.runs.evaluation_log import Look, Looks, evaluation_log_damages, looks_at, record_look

AGENTS = "abcde"


def look_of(agent: str, first: str = "2021-01-04", last: str = "2021-12-31", **changes: object) -> Look:
    values = {"symbols": ("A", "B"), "settings": "rules", "run": "one", "sharpe": 0.1, **changes}
    return Look.model_validate({"first": first, "last": last, "agent": agent, **values})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


@pytest.fixture
def five(store: Store) -> Store:
    for agent in AGENTS:
        record_look(store, look_of(agent))
    return store


def counted(store: Store) -> Looks:
    return looks_at(store, ["A"], "2021-01-04", "2021-12-31")


def files(store: Store) -> list[str]:
    return [found.name for folder in (EVALUATION_LOG, EVALUATION_CHAIN) for found in store.objects(folder)]


def test_the_same_look_counts_once_and_each_of_overlapping_days_counts(store: Store) -> None:
    for look in (
        look_of("a"),
        look_of("a", run="a copy of it"),
        look_of("a", first="2021-06-01"),
        look_of("b", first="2021-12-31", last="2022-12-30", run="two", sharpe=None),
        look_of("a", settings="other rules"),
        look_of("c", last="2020-12-31", first="2020-01-02"),
        look_of("d", symbols=("C",)),
    ):
        record_look(store, look)
    looks = looks_at(store, ["B", "X"], "2021-01-04", "2021-12-31")
    # The agent a counts with each of its settings and days.
    assert looks.count == 4
    assert {look.run for look in looks.known} == {"one", "two"}
    assert looks.sharpes == (0.1, 0.1, 0.1)
    assert looks_at(store, ["C"], "2021-01-04", "2021-12-31").count == 1
    assert looks_at(store, ["A"], "2019-01-01", "2019-12-31").count == 0
    assert not evaluation_log_damages(store)


def test_damaged_looks_count(store: Store) -> None:
    record_look(store, look_of("a"))
    damaged = look_of("b")
    store.put(damaged.name, b"{not json")
    store.put("looks/something else.json", b"")
    looks = looks_at(store, ["A"], "2021-05-01", "2021-06-01")
    assert looks.count == 3
    assert all(name in looks.warnings[0] for name in (damaged.name, "something else"))


def edited(store: Store, name: str) -> None:
    """Write another Sharpe ratio into a file of the ledger, or another origin into its head."""
    values = json.loads(store.read(name, 2**20))
    values.get("look", values)["ledger" if name == CHAIN_HEAD else "sharpe"] = "0" if name == CHAIN_HEAD else 0.3
    store.put(name, json.dumps(values).encode())


def deleted(store: Store, name: str) -> None:
    store.delete([name])


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.integers(0, 9), st.sampled_from(["edited", "replaced", "deleted"]), min_size=1))
def test_no_file_of_the_ledger_is_changed_unseen_and_no_look_is_lost(changes: dict[int, str]) -> None:
    store = MemoryStore()
    for agent in AGENTS:
        record_look(store, look_of(agent))
    assert (counted(store).count, counted(store).damages) == (5, ())
    names, written = files(store), dict(store.content)
    for place, change in changes.items():
        name, other = names[place], names[place // 5 * 5 + (place + 1) % 5]
        if change == "replaced":
            store.put(name, written[other])
        else:
            (edited if change == "edited" else deleted)(store, name)
    found = counted(store)
    # A look with a wrong file counts twice if its entry is lost too.
    assert 5 <= found.count <= 5 + len(changes) // 2
    assert found.damages
    assert evaluation_log_damages(store) == found.damages
    # An edited look has the Sharpe ratio that was written.
    assert found.sharpes == (0.1,) * 5 or max(changes) >= 5
    # Later looks are kept and counted, and the damage stays known.
    record_look(store, look_of("f"))
    assert counted(store).count >= 6
    assert evaluation_log_damages(store)


def newest(number: int) -> list[str]:
    numbers = range(len(AGENTS) - number, len(AGENTS))
    return [
        name for place in numbers for name in (look_of(AGENTS[place]).name, f"{EVALUATION_CHAIN}{place + 1:08d}.json")
    ]


@pytest.mark.parametrize("number", range(1, len(AGENTS) + 1))
def test_the_newest_looks_that_are_deleted_with_their_entries_count(five: Store, number: int) -> None:
    five.delete(newest(number))
    found = counted(five)
    assert found.count == 5
    assert found.damages
    assert evaluation_log_damages(five) == found.damages
    # Neither a later look nor the same one again takes the place of what is missing.
    record_look(five, look_of("f"))
    record_look(five, look_of(AGENTS[-1]))
    assert (counted(five).count, len(evaluation_log_damages(five))) == (7, 1)


@pytest.mark.parametrize("change", [edited, deleted])
def test_the_head_of_a_ledger_that_is_changed_or_deleted_is_named(
    five: Store, change: Callable[[Store, str], None]
) -> None:
    five.delete(newest(1))
    change(five, CHAIN_HEAD)
    assert counted(five).count >= 5
    assert CHAIN_HEAD in [damage.path for damage in evaluation_log_damages(five)]
    record_look(five, look_of("f"))
    assert counted(five).count >= 6
    assert CHAIN_HEAD in [damage.path for damage in evaluation_log_damages(five)]


@pytest.mark.parametrize("left", ["looks", "an entry", "a run"])
def test_a_machine_that_has_added_looks_knows_them_though_look_chain_and_head_are_gone(store: Store, left: str) -> None:
    store.put("run/config.json", b"{}")
    for agent in AGENTS:
        record_look(store, look_of(agent))
    looks = [look_of(agent).name for agent in AGENTS[:4]]
    kept = {"looks": looks, "an entry": [f"{EVALUATION_CHAIN}00000001.json"], "a run": []}[left]
    store.delete([name for name in (*files(store), CHAIN_HEAD) if name not in kept])
    for more in range(2):
        assert counted(store).count >= 5 + more
        assert CHAIN_HEAD in [damage.path for damage in evaluation_log_damages(store)] or more
        assert evaluation_log_damages(store)
        record_look(store, look_of("f"))


def test_a_forged_number_of_an_entry_makes_up_no_looks(five: Store) -> None:
    forged, entry = f"{EVALUATION_CHAIN}99999999.json", five.read(f"{EVALUATION_CHAIN}00000005.json", 2**20)
    for content in (entry.replace(b'"number":5', b'"number":99999999'), b"{}"):
        five.put(forged, content)
        assert (counted(five).count, [damage.path for damage in evaluation_log_damages(five)]) == (6, [forged])
    record_look(five, look_of("f"))
    assert counted(five).count == 7
    five.put(CHAIN_HEAD, five.read(CHAIN_HEAD, 2**20).replace(b'"number":6', b'"number":1000000'))
    with pytest.raises(InputError, match="which no log reaches"):
        record_look(five, look_of("g"))


def test_a_machine_that_has_added_looks_knows_them_though_the_store_is_put_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for agent in AGENTS[:-1]:
        record_look(store, look_of(agent))
    head = store.read(CHAIN_HEAD, 2**20)
    record_look(store, look_of(AGENTS[-1]))
    store.delete(newest(1))
    store.put(CHAIN_HEAD, head)
    assert (counted(store).count, len(evaluation_log_damages(store))) == (5, 1)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("EIGEN_CACHE", str(tmp_path / "another machine"))
        assert (counted(store).count, evaluation_log_damages(store)) == (4, ())
    # The next look of this machine tells all others.
    record_look(store, look_of("f"))
    monkeypatch.setenv("EIGEN_CACHE", str(tmp_path / "another machine"))
    assert (counted(store).count, len(evaluation_log_damages(store))) == (6, 1)


def test_a_new_store_in_the_place_of_another_begins_without_looks(five: Store) -> None:
    five.delete([*files(five), CHAIN_HEAD])
    assert (counted(five).count, evaluation_log_damages(five)) == (0, ())
    five.put("run/config.json", b"{}")
    assert (counted(five).count, evaluation_log_damages(five)) == (0, ())
    record_look(five, look_of("a"))
    assert (counted(five).count, evaluation_log_damages(five)) == (1, ())


@pytest.mark.parametrize("with_copy", [False, True], ids=["no copy here", "a copy here of an earlier store's head"])
@pytest.mark.parametrize("request_number", range(7))
def test_whoever_reads_while_another_machine_begins_a_log_sees_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_number: int, with_copy: bool
) -> None:
    monkeypatch.setenv("EIGEN_CACHE", str(tmp_path / "cache"))
    if with_copy:
        record_look(MemoryStore(), look_of("a"))
    store, requests = MemoryStore(), iter(range(99))

    def begin(_operation: str, _name: str) -> None:
        if next(requests) == request_number:
            store.before = None
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("EIGEN_CACHE", str(tmp_path / "elsewhere"))
                for agent in "bc":
                    record_look(store, look_of(agent))

    store.before = begin
    found = counted(store)
    assert (found.damages, found.unreadable) == ((), 0)
    assert found.count <= 2


def test_a_chain_from_before_there_was_a_head_goes_on(five: Store, tmp_path: Path) -> None:
    older, previous = open_store(str(tmp_path / "older")), ""
    for name in files(five):
        content = five.read(name, 2**20)
        if name.startswith(EVALUATION_CHAIN):
            values = json.loads(content) | {"previous": previous}
            del values["ledger"]
            content = json.dumps(values).encode()
            previous = hashlib.sha256(content).hexdigest()
        older.put(name, content)
    assert (counted(older).count, evaluation_log_damages(older)) == (5, ())
    record_look(older, look_of("f"))
    assert (counted(older).count, evaluation_log_damages(older)) == (6, ())
    older.delete([look_of("f").name, "looks-chain/00000006.json"])
    assert (counted(older).count, len(evaluation_log_damages(older))) == (6, 1)


def test_a_process_that_dies_before_it_keeps_the_head_damages_nothing(store: Store) -> None:
    for agent in AGENTS[:-1]:
        record_look(store, look_of(agent))
    head = store.read(CHAIN_HEAD, 2**20)
    record_look(store, look_of(AGENTS[-1]))
    store.put(CHAIN_HEAD, head)
    assert (counted(store).count, evaluation_log_damages(store)) == (5, ())
    record_look(store, look_of("f"))
    assert (counted(store).count, evaluation_log_damages(store)) == (6, ())


def test_a_machine_without_a_folder_for_copies_still_counts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EIGEN_CACHE", str(tmp_path / "file" / "cache"))
    record_look(store, look_of("a"))
    assert (counted(store).count, evaluation_log_damages(store)) == (1, ())


@pytest.mark.parametrize(
    "content", [b"{not json", b'{"ledger": "x", "number": 99999999999, "sha256": ""}', b"[" * 60_000]
)
def test_a_foreign_head_costs_nothing(store: Store, content: bytes) -> None:
    record_look(store, look_of("a"))
    store.put(CHAIN_HEAD, content)
    assert counted(store).count == 2
    record_look(store, look_of("b"))
    assert counted(store).count == 3
    assert [damage.path for damage in evaluation_log_damages(store)] == [CHAIN_HEAD]


def test_looks_from_before_there_was_a_chain_count_and_are_in_it_from_now_on(store: Store) -> None:
    for agent in "abc":
        look = look_of(agent)
        store.put(look.name, look.model_dump_json().encode())
    assert (counted(store).count, counted(store).damages) == (3, ())
    record_look(store, look_of("d"))
    assert (counted(store).count, counted(store).damages) == (4, ())
    edited(store, look_of("a").name)
    store.delete([look_of("b").name])
    found = counted(store)
    assert (found.count, len(found.damages)) == (4, 2)


def test_looks_that_are_kept_at_once_are_all_chained(store: Store) -> None:
    agents = [f"agent {number}" for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda agent: record_look(store, look_of(agent)), agents))
    assert (counted(store).count, counted(store).damages) == (24, ())
    assert sum("chain" in name for name in files(store)) == 24
    store.delete([look_of("agent 7").name])
    assert (counted(store).count, len(counted(store).damages)) == (24, 1)


def test_a_foreign_entry_names_no_file_outside_of_the_ledger(store: Store) -> None:
    record_look(store, look_of("a"))
    entry = {"number": 2, "previous": "", "look": look_of("b", first="../../x").model_dump(), "before": {"../y": ""}}
    store.put("looks-chain/00000002.json", json.dumps(entry).encode())
    assert counted(store).count == 2
    assert counted(store).damages


@pytest.mark.parametrize("name", ["looks", "looks-chain", "ledger.json"])
def test_no_run_takes_the_ledgers_name(name: str) -> None:
    with pytest.raises(InputError, match=r"the store has a (folder|file) of that name"):
        check_run_name(name)


_SMALL = (
    "generations=1",
    "population.size=2",
    "market.window=8",
    "market.holdout=120",
    "network.scales=[1,5]",
    "network.linear_scales=[1,5]",
    "trading.trading_bars=20",
    "evaluation.slices=1",
    "evaluation.lowest=1",
    "learner.gradient_steps=1",
)


def trust(*arguments: str, code: int | None = None) -> Result:
    given = {argument.partition("=")[0] for argument in arguments}
    settings = [part for one in _SMALL if one.partition("=")[0] not in given for part in ("--set", one)]
    return eigen("trust", "us5", "--trials", "1", *settings, *arguments, code=code)


@pytest.mark.parametrize(
    ("claimed", "smallest"), [((1, 8, 9), 0.1), ((9, 9, 9), 0.05), ((9, 2, 9), 0.2), ((9, 9, 7), None)]
)
def test_the_smallest_edge_is_found_in_most_trials_as_are_all_greater_ones(
    claimed: tuple[int, ...], smallest: float | None
) -> None:
    power = {edge: Claims(10, number) for edge, number in zip((0.05, 0.1, 0.2), claimed, strict=True)}
    assert Trust(Claims(10, 0), power).smallest_edge == smallest


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        *((("--edges", text), "from 0 to 1") for text in ("1.5", "-0.1", "nan", "much", "0.1;0.2")),
        (("--set", "market.holdout=0"), "Trials need a market with holdout days"),
        (
            ("--set", "task=gym:Pendulum-v1", "--set", "network.linear_scales=[]"),
            "Trials need a market with holdout days",
        ),
        (("--edges", "0.1", "--set", 'market.symbols=["AAPL","MSFT"]'), "2 tradable symbols: give prices of 3 or more"),
    ],
)
def test_trials_that_cannot_be_made_are_refused_before_the_first(
    given: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    ended = trust(*given, "--out", str(tmp_path / "trials"), code=2)
    assert ended.stderr.count("\n") == 1
    assert sentence in ended.stderr
    assert not (tmp_path / "trials").exists()


def test_claims_of_skill_are_counted_by_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_: TrustTrials, edge: float | None, seed: int) -> Trial:
        claims_skill = seed % 2 == 0 if edge is None else edge > 0.1
        found = {"edge": edge, "seed": seed, "claim": "skill" if claims_skill else "none", "matched_pvalue": 0.5}
        return Trial.model_validate({**found, "trades": 3, "excess": None, "excess_pvalue": None})

    monkeypatch.setattr(TrustTrials, "_run_trial", made)
    arguments = ("--trials", "4", "--edges", " 0.2, 0.1 ,", "--out", str(tmp_path))
    document = json.loads(trust(*arguments, "--json").stdout)
    shares = [document["false_alarms"], *document["power"]]
    assert [(share["trials"], share["claimed"]) for share in shares] == [(4, 2), (4, 0), (4, 4)]
    assert document["smallest_edge"] == 0.2
    printed = trust(*arguments)
    assert "2 of 4" in printed.stdout
    assert "trial" not in printed.stderr, "kept trials are made again"


@pytest.mark.thorough
def test_trials_are_made_with_portfolios(tmp_path: Path) -> None:
    trust(
        "--preset", "portfolio", "--set", "network.linear_scales=[]", "--edges", "0.3", "--out", str(tmp_path), code=0
    )
    trial = Trial.model_validate_json((tmp_path / "edge-0.3-1.json").read_bytes())
    assert (trial.trades > 0, trial.excess is None) == (True, False)


@pytest.mark.thorough
def test_finished_trials_are_kept_and_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_preset = ("--preset", "ddpg", "--set", "network.linear_scales=[]")
    arguments = (*of_preset, "--edges", "0.3", "--out", str(tmp_path))
    first = trust(*arguments, "--json", code=0)
    assert [line.partition(":")[0] for line in first.stderr.splitlines()] == [
        "trial 1/2  nothing to predict, seed 1",
        "trial 2/2  planted edge 0.3, seed 1",
    ]
    document = json.loads(first.stdout)
    assert list(document) == ["false_alarms", "power", "ridge", "smallest_edge", "sentences"]
    assert [(found["edge"], found["trials"]) for found in document["ridge"]] == [(None, 1), (0.3, 1)]
    assert list(document["false_alarms"]) == ["trials", "claimed", "share", "interval"]
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(files) == {"definition.json", "noise-1.json", "edge-0.3-1.json"}

    (tmp_path / "edge-0.3-1.json").unlink()
    assert json.loads(trust(*arguments, "--json").stdout) == document
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files

    other = trust(*arguments, "--set", "trading.cost_bps=9", code=2)
    assert "were made with other settings or prices" in other.stderr

    # As an older version wrote it, with a setting that its learner did not read.
    definition = json.loads(files["definition.json"])
    definition["config"] |= {"format_version": 10, "learner": {**definition["config"]["learner"], "clip_range": 0.1}}
    (tmp_path / "definition.json").write_text(json.dumps(definition))
    without = json.loads(files["noise-1.json"])
    assert without.pop("ridge") in ("skill", "none", "undecided")
    (tmp_path / "noise-1.json").write_text(json.dumps(without))
    monkeypatch.setattr(TrustTrials, "_run_trial", None)
    assert [found["edge"] for found in json.loads(trust(*arguments, "--json", code=0).stdout)["ridge"]] == [0.3]

    (tmp_path / "noise-1.json").write_text("{}")
    assert "holds no trial: remove it" in trust(*arguments).stderr
