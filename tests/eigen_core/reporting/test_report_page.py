"""The page of a report: what it says, that it needs nothing else and is escaped, and how browsers show it."""

import base64
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from browser import Browser, browser, missing_browser
from report_cases import BASELINES, comparison_of, report_of
from trading_cases import curve_of

from eigen_core.common.text import money, percent
from eigen_core.reporting.compare import comparison_page
from eigen_core.reporting.report import Report, Setting, calendar_table, report_page, trade_tables
from eigen_core.trading.baselines import MatchedTraders

MOST_BYTES = 3_000_000


class _Parsed(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.labels: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids += [values["id"]] if "id" in values else []
        self.targets += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        self.targets += re.findall(r"url\(([^)]+)\)", " ".join(values.values()))
        if tag == "svg":
            self.labels.append(values["aria-label"].replace("\N{NO-BREAK SPACE}", " "))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(folds=2)


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return report_page(report)


def test_the_verdict_comes_first_and_is_said_once(page: str) -> None:
    body = page[page.index("<body>") :]
    assert (
        body.index("No skill shown")
        < body.index("excess per trade is 0.02 ± 0.11\N{NO-BREAK SPACE}%")
        < body.index("<svg")
    )
    assert body.count("No skill shown") == 1


def test_it_needs_no_other_file_and_no_script(page: str) -> None:
    parsed = _Parsed(page)
    assert not parsed.open
    assert "<script" not in page
    assert "@import" not in page
    assert [target for target in parsed.targets if not target.startswith("#")] == ["data:,"]
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {target[1:] for target in parsed.targets if target.startswith("#")} <= set(parsed.ids)
    assert report_page(report_of(folds=2)) == page


def test_plots_have_labels_with_their_numbers_and_the_colours_of_the_page(page: str, report: Report) -> None:
    labels = _Parsed(page).labels
    assert len(labels) == 4
    assert f"Agent {money(report.played.curve.equity[-1])}" in labels[0]
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert re.findall(r"(?:fill|stroke): (?!none|var\(--)[^;\"]+", drawings) == []


def test_twenty_years_of_all_baselines_stay_below_three_megabytes() -> None:
    assert len(report_page(report_of(days=5_040, draws=1_000)).encode()) < MOST_BYTES


def test_what_is_inserted_is_escaped() -> None:
    spoiled = "<img src=x onerror=alert(1)>"
    trades = report_of().played.trades.assign(symbol=spoiled)
    page = report_page(
        report_of(
            run=spoiled,
            agent=spoiled,
            sentence=spoiled,
            trades=trades,
            warnings=[spoiled],
            data=[spoiled],
            settings=[Setting("market.data", spoiled, spoiled)],
            commands=[spoiled],
        )
    )
    assert spoiled not in page
    assert "&lt;img src=x" in page


def test_an_agent_that_never_trades_in_few_days_has_a_report_without_the_parts_that_need_more() -> None:
    idle = curve_of(pd.Series(np.zeros(30), index=pd.bdate_range("2013-01-01", periods=30)))
    page = report_page(
        report_of(
            curve=idle,
            baselines=dict.fromkeys(BASELINES, idle),
            trades=report_of().played.trades[:0],
            matched=MatchedTraders(np.zeros(0), "matched random traders"),
            settings=[Setting("seed", "1", None)],
            sentence="The span is short: it has 30 days.",
            claim="undecided",
        )
    )
    for section in ("luck", "folds", "weights"):
        assert f'id="{section}"' not in page
        assert f'href="#{section}"' not in page
    for said in ("The span is short: it has 30 days.", "The agent did not trade.", "All settings are those of preset"):
        assert said in page


def test_months_compound_to_their_year() -> None:
    report = report_of(days=300)
    growth = pd.Series(1.0 + report.played.curve.returns, index=pd.DatetimeIndex(report.played.curve.dates))
    months = growth.resample("ME").prod() - 1.0
    table = calendar_table(report.played.curve)
    shown = [cell.text for row in table.rows for cell in row[1:-1] if cell.text]
    assert shown == [percent(value) for value in months]
    assert [row[-1].text for row in table.rows] == [percent(value - 1.0) for value in growth.resample("YE").prod()]


def test_few_trades_are_shown_whole_and_many_by_their_ends() -> None:
    trades = report_of().played.trades
    assert [table.caption for table in trade_tables(trades[:10])] == ["All trades"]
    first, last, best, worst = trade_tables(trades)
    assert first.rows[0][1].text == str(trades["fill"].min())[:10]
    assert last.rows[-1][1].text == str(trades["fill"].max())[:10]
    assert best.rows[0][-2].text == money(trades["gain"].max())
    assert worst.rows[0][-2].text == money(trades["gain"].min())


def test_a_portfolio_shows_its_weights_over_time_instead_of_trades() -> None:
    assets = 9
    days = pd.bdate_range("2012-11-01", periods=400)
    symbols = [f"S{number}" for number in range(assets)]
    drawn = np.random.default_rng(1).dirichlet(np.ones(assets), 400) - 0.05
    weights = pd.DataFrame(drawn, index=days, columns=symbols)
    money = {"paid": 9.0, "received": 0.0, "costs": 0.1, "gain": 3.0}
    orders = pd.DataFrame({"symbol": symbols, "fill": days[:assets], "shares": 2.0, **money})
    body = report_page(report_of(trades=orders, weights=weights))
    parsed = _Parsed(body)
    assert "weights" in parsed.ids
    assert any(label.startswith("Shares of the equity over the days.") for label in parsed.labels)
    assert "Others" in body
    assert "Mean weight" in body
    assert "First trades" not in body
    assert f"{assets} orders brought the account to its target weights" in body


_MISSING = missing_browser()


WIDE, NARROW, PAPER = 1_280, 390, 700
_MOST_PAGES = 12

_LARGEST_OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
_REQUESTS = "return performance.getEntriesByType('resource').map(entry => entry.name)"
# A plot is drawn if its lines have an extent.
_SHOWN_PLOTS = """
return [...document.querySelectorAll('svg')].map(svg =>
    [svg.getBoundingClientRect().width, svg.querySelectorAll('path').length,
     Math.min(...[...svg.querySelectorAll('text')].map(text => parseFloat(getComputedStyle(text).fontSize)
         * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))])
"""
# What is drawn beyond the box of a plot may be drawn beyond the page.
_CUT_OFF = """
return [...document.querySelectorAll('svg')].flatMap(svg =>
    [...svg.querySelectorAll('text')].filter(text =>
        text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 1
        || text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1).map(text => text.textContent))
"""
_CONTRASTING = "const body = getComputedStyle(document.documentElement); return [body.color, body.backgroundColor]"


@pytest.fixture(scope="module", params=["report", "comparison"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, int]]:
    """A page in a browser, and the number of its plots."""
    folder, plots = tmp_path_factory.mktemp("pages"), 4
    page, text = report_page(report_of(days=700, folds=3)), "No skill shown"
    if request.param == "comparison":
        page, text, plots = comparison_page(comparison_of()), "Settings that differ", 1
    (folder / "page.html").write_text(page, encoding="utf-8")
    with browser(folder) as found:
        found.open((folder / "page.html").as_uri(), text)
        yield found, plots


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.thorough
@pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
def test_a_page_fits_its_width_and_its_plots_can_be_read(shown: tuple[Browser, int], width: int) -> None:
    page, number = shown
    page.show_at(width)
    assert page.driver.execute_script(_LARGEST_OVERFLOW) <= 0
    plots = page.driver.execute_script(_SHOWN_PLOTS)
    assert len(plots) == number
    for drawn, paths, letters in plots:
        assert drawn > 0.7 * min(width, 900)
        assert paths > 4
        assert letters > 11
    assert page.driver.execute_script(_CUT_OFF) == []
    assert page.driver.execute_script(_REQUESTS) == []
    assert page.console_errors() == []


@pytest.mark.thorough
@pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
def test_dark_is_dark_and_paper_is_white(shown: tuple[Browser, int]) -> None:
    page, number = shown
    page.show_at(WIDE)
    letters, paper = map(_brightness, page.driver.execute_script(_CONTRASTING))
    assert (letters < 80, paper > 240) == (True, True)
    page.show_at(WIDE, scheme="dark")
    letters, paper = map(_brightness, page.driver.execute_script(_CONTRASTING))
    assert (letters > 200, paper < 60) == (True, True)
    page.show_at(PAPER, scheme="dark", media="print")
    assert len(page.driver.execute_script(_SHOWN_PLOTS)) == number
    assert _brightness(page.driver.execute_script(_CONTRASTING)[1]) > 240
    assert page.driver.execute_script(_LARGEST_OVERFLOW) <= 0
    page.show_at(WIDE)
    printed = base64.b64decode(page.driver.print_page())
    assert printed.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= _MOST_PAGES


def _brightness(colour: str) -> float:
    channels = [int(channel) for channel in re.findall(r"\d+", colour)[:3]]
    return sum(channels) / 3
