"""Reports in a real browser: on a wide and a narrow screen, dark, and printed."""

import base64
import re
from collections.abc import Iterator

import pytest
from browser import Browser, browser, missing_browser
from report_cases import comparison_of, report_of

from eigen_core.reporting.compare import comparison_page
from eigen_core.reporting.report_page import report_page

_MISSING = missing_browser()

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]

WIDE, NARROW, PAPER = 1_280, 390, 700
PLOTS = 6
_MOST_PAGES = 12

_LARGEST_OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
_REQUESTS = "return performance.getEntriesByType('resource').map(entry => entry.name)"
# A plot is drawn if its lines have an extent, and shown if its box has.
_SHOWN_PLOTS = """
return [...document.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0).map(svg =>
    [svg.getBoundingClientRect().width, svg.querySelectorAll('path').length,
     Math.min(...[...svg.querySelectorAll('text')].map(text => parseFloat(getComputedStyle(text).fontSize)
         * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))])
"""
# What is drawn beyond the box of a plot may be drawn beyond the page.
_CUT_OFF = """
return [...document.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0).flatMap(svg =>
    [...svg.querySelectorAll('text')].filter(text =>
        text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 1
        || text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1).map(text => text.textContent))
"""
_CONTRASTING = "const body = getComputedStyle(document.documentElement); return [body.color, body.backgroundColor]"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("reports")
    (folder / "report.html").write_text(report_page(report_of(days=700, folds=3)), encoding="utf-8")
    (folder / "comparison.html").write_text(comparison_page(comparison_of()), encoding="utf-8")
    with browser(folder) as found:
        found.open((folder / "report.html").as_uri(), "No skill shown")
        yield found


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_fits_its_width_and_its_plots_can_be_read(shown: Browser, width: int) -> None:
    shown.show_at(width)
    assert shown.driver.execute_script(_LARGEST_OVERFLOW) <= 0
    plots = shown.driver.execute_script(_SHOWN_PLOTS)
    assert len(plots) == PLOTS
    for drawn, paths, letters in plots:
        assert drawn > 0.7 * min(width, 900)
        assert paths > 4
        assert letters > 11
    assert shown.driver.execute_script(_CUT_OFF) == []


def test_nothing_is_asked_for_and_the_console_is_empty(shown: Browser) -> None:
    assert shown.driver.execute_script(_REQUESTS) == []
    assert shown.console_errors() == []


def test_dark_is_dark(shown: Browser) -> None:
    shown.show_at(WIDE)
    light = shown.driver.execute_script(_CONTRASTING)
    shown.show_at(WIDE, scheme="dark")
    dark = shown.driver.execute_script(_CONTRASTING)
    assert (_brightness(light[0]) < 80, _brightness(light[1]) > 240) == (True, True)
    assert (_brightness(dark[0]) > 200, _brightness(dark[1]) < 60) == (True, True)
    shown.show_at(WIDE)


def _brightness(colour: str) -> float:
    channels = [int(channel) for channel in re.findall(r"\d+", colour)[:3]]
    return sum(channels) / 3


def test_on_paper_it_is_wide_plots_on_white(shown: Browser) -> None:
    shown.show_at(PAPER, scheme="dark", media="print")
    assert len(shown.driver.execute_script(_SHOWN_PLOTS)) == PLOTS
    assert "wide" in shown.driver.execute_script(
        "return [...document.querySelectorAll('svg')].find(svg => svg.getBoundingClientRect().width).classList.value"
    )
    assert _brightness(shown.driver.execute_script(_CONTRASTING)[1]) > 240
    assert shown.driver.execute_script(_LARGEST_OVERFLOW) <= 0
    shown.show_at(WIDE)
    paper = base64.b64decode(shown.driver.print_page())
    assert paper.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= _MOST_PAGES


def test_a_comparison_fits_too(shown: Browser) -> None:
    report = shown.driver.current_url
    shown.open(report.replace("report.html", "comparison.html"), "Settings that differ")
    for width in (WIDE, NARROW):
        shown.show_at(width)
        assert shown.driver.execute_script(_LARGEST_OVERFLOW) <= 0
        assert len(shown.driver.execute_script(_SHOWN_PLOTS)) == 1
        assert shown.driver.execute_script(_CUT_OFF) == []
    assert shown.driver.execute_script(_REQUESTS) == []
    assert shown.console_errors() == []
