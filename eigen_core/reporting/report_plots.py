"""The plots of the HTML reports, as SVG in the colours and the font of the page."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.typing import RcKeyType

from eigen_core.common.text import money, percent
from eigen_core.judging.backtest import SpanResult
from eigen_core.reporting.style import (
    BLUE,
    BROWN,
    CHAMPION,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SHADE,
    SKY,
    VERMILLION,
    EndLabel,
    empty_figure,
    label_colour,
    label_ends,
)
from eigen_core.trading.equity import EquityCurve
from eigen_core.trading.metrics import drawdowns

AGENT = "Agent"

_BASELINES = {
    "cash": ("Cash", MUTED),
    "equal_weight": ("Equal weight (held)", BLUE),
    "rebalanced": ("Equal weight (daily)", SKY),
    "momentum": ("Momentum", GREEN),
    "reversal": ("Reversal", PURPLE),
    "classic": ("Classic rule", ORANGE),
    "ridge": ("Ridge regression", BROWN),
    "initial_population": ("Initial agents", INK),
}
NAMES = {key: name for key, (name, _) in _BASELINES.items()}
"""Names of the baselines in reports, by their key in `SpanResult.baselines`."""
BASELINE_COLOURS = {key: colour for key, (_, colour) in _BASELINES.items()}
_WEIGHT_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, INK)
_THIN, _THICK = 1.3, 2.4
_DASHED = (0, (3.0, 2.0))
_DECADE = 8.0
_LABEL_PIXELS = 12.0
_LONGEST_NAME = 20


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def equity_plot(curves: Mapping[str, EquityCurve], colours: Mapping[str, str], ends: Sequence[str] = ()) -> Markup:
    last = ", ".join(f"{name} {money(curve.equity[-1])}" for name, curve in curves.items())
    label = f"Equity over the days, on a logarithmic axis. At the end: {last}."
    return plot("equity", label, lambda axes: draw_equity(axes, curves, colours, ends), height=380)


def draw_equity(
    axes: Axes, curves: Mapping[str, EquityCurve], colours: Mapping[str, str], ends: Sequence[str] = ()
) -> None:
    """Draw the equity of accounts, by name, on a logarithmic axis, the first one thick and in front.

    `ends`: last dates of a walk's folds, as YYYY-MM-DD; all but the last are marked by dotted lines.
    """
    labels = []
    for position, (name, curve) in enumerate(curves.items()):
        first = position == 0
        axes.plot(
            curve.dates,
            curve.equity,
            color=colours[name],
            linewidth=_THICK if first else _THIN,
            linestyle=_DASHED if colours[name] in (MUTED, INK) and not first else "solid",
            zorder=4 if first else 2,
        )
        last = float(curve.equity[-1])
        labels.append(EndLabel(last, f"{_shorten(name)} {money(last)}", colours[name]))
    for end in ends[:-1]:
        axes.axvline(np.datetime64(end), color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)  # type: ignore[arg-type]
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    wide_range = high > _DECADE * low
    axes.yaxis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0)) if wide_range else MaxNLocator(nbins=6, steps=[1, 2, 5, 10])
    )
    axes.yaxis.set_minor_locator(NullLocator())
    _axes(axes, money)
    label_ends(axes, labels, size=_LABEL_PIXELS)


def drawdown_plot(played: SpanResult) -> Markup:
    dates, own, name = played.curve.dates, drawdowns(played.curve), played.benchmark
    other, colour = drawdowns(played.baselines[name]), BASELINE_COLOURS[name]

    def draw(axes: Axes) -> None:
        axes.fill_between(dates, own, 0.0, color=CHAMPION, alpha=0.18, linewidth=0)
        axes.plot(dates, own, color=CHAMPION, linewidth=1.8)
        axes.plot(dates, other, color=colour, linewidth=_THIN)
        labels = [EndLabel(float(own[-1]), AGENT, CHAMPION), EndLabel(float(other[-1]), NAMES[name], colour)]
        axes.set_ylim(top=0.0)
        _axes(axes, percent, percentages=5)
        label_ends(axes, labels, size=_LABEL_PIXELS)

    return plot("drawdowns", f"Drawdowns over the days. The agent's deepest is {percent(own.min())}.", draw, height=230)


def exposure_plot(curve: EquityCurve) -> Markup:
    dates, exposure = curve.dates, curve.exposure

    def draw(axes: Axes) -> None:
        axes.fill_between(dates, exposure, 0.0, color=CHAMPION, alpha=0.25, linewidth=0, step="post")
        axes.set_ylim(0.0, max(1.0, 1.05 * float(exposure.max())))
        _axes(axes, percent, percentages=4)

    label = f"Invested share of the equity over the days, {percent(float(exposure.mean()))} on average."
    return plot("exposure", label, draw, height=180, margins=(64, 24))


def weights_plot(weights: pd.DataFrame) -> tuple[Markup, dict[str, str]]:
    """Plot `SpanResult.weights`: the largest assets and the sum of the others; also return their colours by name."""
    order = weights.abs().mean().sort_values(ascending=False, kind="stable").index
    apart = list(order[: len(_WEIGHT_COLOURS)])
    shares = {str(symbol): weights[symbol].to_numpy() for symbol in apart}
    if len(order) > len(apart):
        shares["Others"] = weights.drop(columns=apart).to_numpy().sum(axis=1)
    colours = dict(zip(shares, (*_WEIGHT_COLOURS[: len(apart)], SHADE), strict=False))
    dates = weights.index.to_numpy()

    def draw(axes: Axes) -> None:
        for bought in (np.maximum, np.minimum):
            sides = [bought(values, 0.0) for values in shares.values()]
            axes.stackplot(dates, sides, colors=list(colours.values()), linewidth=0, step="post")
        low, high = (float(bound) for bound in axes.dataLim.intervaly)
        axes.set_ylim(min(0.0, 1.05 * low), max(1.0, 1.05 * high))
        _axes(axes, percent, percentages=4)

    means = ", ".join(f"{name} {percent(float(values.mean()), 1)}" for name, values in shares.items())
    return plot(
        "weights", f"Shares of the equity over the days. On average: {means}.", draw, height=300, margins=(64, 24)
    ), colours


def matched_plot(played: SpanResult) -> Markup:
    own, matched = played.metrics.total_return, played.matched.total_returns

    def draw(axes: Axes) -> None:
        axes.hist(matched, bins=40, color=SHADE, edgecolor=MUTED, linewidth=0.5)
        top = 1.22 * axes.get_ylim()[1]
        axes.set_ylim(0.0, top)
        left, right = axes.get_xlim()
        median = float(np.median(matched))
        # The agent's line crosses the height of the median's text, which is therefore on its other side.
        marks = (
            (median, "median", MUTED, 0.90, median <= own),
            (own, AGENT, CHAMPION, 0.99, own > left + 0.6 * (right - left)),
        )
        for value, name, colour, height, text_is_left in marks:
            axes.axvline(value, ymax=height, color=colour, linewidth=_THICK if colour == CHAMPION else _THIN)
            axes.annotate(
                f"{name} {percent(value)}",
                (value, height * top),
                xytext=(-6 if text_is_left else 6, 0),
                textcoords="offset points",
                ha="right" if text_is_left else "left",
                va="top",
                color=label_colour(colour),
            )
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        _percentages(axes.xaxis, 8)

    label = (
        f"Distribution of the total returns of {len(matched):,} matched random traders, median "
        f"{percent(float(np.median(matched)))}. The agent's {percent(own)} is above "
        f"{percent(played.matched.quantile_of(own) or 0.0, 0)} of them."
    )
    return plot("matched", label, draw, height=260, margins=(24, 24))


def _axes(axes: Axes, text: Callable[[float], str], percentages: int = 0) -> None:
    """Format axes over days: few ticks, a grid of y, no frame; `percentages`: most ticks of y in percent; 0: any."""
    axes.margins(x=0.0)
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if percentages:
        _percentages(axes.yaxis, percentages)


def _percentages(axis: Axis, ticks: int) -> None:
    """Put at most about `ticks` round percentages on an axis of fractions, with as many decimals as needed."""
    locator = MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10])
    low, high = axis.get_view_interval()
    step = float(np.diff(locator.tick_values(low, high)).min())
    digits = max(0, int(np.ceil(-np.log10(100.0 * step) - 1e-9)))
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: percent(value, digits)))


WIDTH = 880
"""Width of a plot (pixels of the page). A narrow page, such as that of a telephone, scrolls it."""

# A unit of the drawing is a pixel of the page.
_POINTS_PER_INCH = 72.0
_FONT_PIXELS = 12.5
# Pixels that tick labels and half a line need.
_BELOW, _ABOVE = 30, 10
_SETTINGS: dict[RcKeyType, Any] = {
    # Text stays text: it is searched, copied, and drawn with the letters of the page.
    "svg.fonttype": "none",
    "svg.hashsalt": "eigen",
    "font.size": _FONT_PIXELS,
    "axes.titlesize": _FONT_PIXELS,
    "figure.dpi": _POINTS_PER_INCH,
    "path.simplify_threshold": 0.4,
}
_COLOURS = {
    "ink": (INK, "#E9E9E6"),
    "muted": (MUTED, "#A3A3A0"),
    "grid": (GRID, "#33373D"),
    "shade": (SHADE, "#2B2F35"),
    "blue": (BLUE, "#58A9E0"),
    "sky": (SKY, "#8CCBF2"),
    "green": (GREEN, "#3CBF98"),
    "orange": (ORANGE, "#F0B73C"),
    "vermillion": (VERMILLION, "#F58B4C"),
    "purple": (PURPLE, "#DE9DC1"),
    "brown": (BROWN, "#C9A57B"),
}
"""By the name of a CSS variable, the variable's colour on a light and on a dark background."""
_TEXT_COLOURS = {f"{name}-text": (label_colour(light), dark) for name, (light, dark) in _COLOURS.items()}
_PAPER = ("#FFFFFF", "#16181B")


def variables() -> dict[str, tuple[str, str]]:
    """Return the colours of a page by the name of their CSS variable: on a light and on a dark background."""
    return {**_COLOURS, **_TEXT_COLOURS, "paper": _PAPER}


def variable(colour: str) -> str:
    """Return the CSS variable, such as `var(--blue)`, of a colour of `eigen_core.reporting.style`."""
    return next(f"var(--{name})" for name, (light, _) in _COLOURS.items() if light == colour)


def plot(
    name: str, label: str, draw: Callable[[Axes], None], *, height: int = 300, margins: tuple[int, int] = (64, 206)
) -> Markup:
    """Return a plot as an SVG drawing in the colours of the page's CSS variables.

    `name` is unique on the page, `label` a description for screen readers; `height` is that of the drawing, `margins`
    are left and right of the axes (pixels).
    """
    with empty_figure((WIDTH / _POINTS_PER_INCH, height / _POINTS_PER_INCH), _SETTINGS) as figure:
        axes = figure.add_axes(
            (margins[0] / WIDTH, _BELOW / height, 1.0 - sum(margins) / WIDTH, 1.0 - (_BELOW + _ABOVE) / height),
            facecolor="none",
        )
        draw(axes)
        figure.savefig(svg := io.StringIO(), format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, label, Markup(_inner(svg.getvalue(), name))
    )


def _inner(svg: str, name: str) -> str:
    """Return the content of an SVG drawing, with the page's colours and font, and ids that are unique on the page."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)\)?\"", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", svg)
    svg = re.sub(r" font-family: [^;\"]+;", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r'(?<= d=")[^"]+', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]).replace("\n", ""), svg)
    for css_name, (light, _) in (_COLOURS | _TEXT_COLOURS).items():
        svg = svg.replace(f": {light.lower()}", f": var(--{css_name})")
    return re.sub(r">\s+<", "><", svg)
