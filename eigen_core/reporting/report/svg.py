"""Plots inside a page: SVG that takes its colours and its letters from the page, drawn for two widths."""

import io
import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from eigen_core.reporting.style import (
    BLUE,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SHADE,
    SKY,
    VERMILLION,
    empty_figure,
    letters,
)

WIDE, NARROW = 880, 352
"""Widths of the two forms of a plot (pixels of the page)."""

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
_LIGHT = {
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    "shade": SHADE,
    "blue": BLUE,
    "sky": SKY,
    "green": GREEN,
    "orange": ORANGE,
    "vermillion": VERMILLION,
    "purple": PURPLE,
}
_DARK = {
    "ink": "#E9E9E6",
    "muted": "#A3A3A0",
    "grid": "#33373D",
    "shade": "#2B2F35",
    "blue": "#58A9E0",
    "sky": "#8CCBF2",
    "green": "#3CBF98",
    "orange": "#F0B73C",
    "vermillion": "#F58B4C",
    "purple": "#DE9DC1",
}
_PAPER = ("#FFFFFF", "#16181B")
_TEXT = {name: letters(colour) for name, colour in _LIGHT.items()}

Draw = Callable[[Axes, bool], None]
"""Draws a plot into axes; the second argument is whether it is the narrow form."""


def variables() -> dict[str, tuple[str, str]]:
    """Return the colours of a page by the name of their CSS variable: on a light ground, and on a dark one."""
    plain = {name: (colour, _DARK[name]) for name, colour in _LIGHT.items()}
    return plain | {f"{name}-text": (colour, _DARK[name]) for name, colour in _TEXT.items()} | {"paper": _PAPER}


def variable(colour: str) -> str:
    """Return a colour of the style as the CSS variable of the page."""
    return next(f"var(--{name})" for name, light in _LIGHT.items() if light == colour)


def plot(name: str, label: str, draw: Draw, *, height: int = 300, margins: tuple[int, int] = (64, 206)) -> Markup:
    """Return a plot for a page, in a wide and a narrow form, of which the page's style shows one.

    Args:
        name: of the plot; no other one of the page has it.
        label: what the plot shows, for those who do not see it.
        draw: draws it, once for each form.
        height: of the wide form (pixels).
        margins: left and right of the wide form's axes (pixels).
    """
    wide = _svg(f"{name}-wide", label, draw, (WIDE, height), margins, narrow=False)
    narrow = _svg(f"{name}-narrow", label, draw, (NARROW, round(0.85 * height)), (52, 12), narrow=True)
    return Markup("{}{}").format(wide, narrow)


def _svg(name: str, label: str, draw: Draw, size: tuple[int, int], margins: tuple[int, int], *, narrow: bool) -> Markup:
    width, height = size
    with empty_figure((width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), _SETTINGS) as figure:
        axes = figure.add_axes(
            (margins[0] / width, _BELOW / height, 1.0 - sum(margins) / width, 1.0 - (_BELOW + _ABOVE) / height),
            facecolor="none",
        )
        draw(axes, narrow)
        inner = _inner(_drawn(figure), name)
    form = "narrow" if narrow else "wide"
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        form, width, height, label, Markup(inner)
    )


def _drawn(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _inner(svg: str, name: str) -> str:
    """Return what is in the SVG, with the page's colours and letters, and names that no other plot has."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)\)?\"", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", svg)
    svg = re.sub(r" font-family: [^;\"]+;", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r'(?<= d=")[^"]+', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]).replace("\n", ""), svg)
    for colours, suffix in ((_LIGHT, ""), (_TEXT, "-text")):
        for named, colour in colours.items():
            svg = svg.replace(f": {colour.lower()}", f": var(--{named}{suffix})")
    return re.sub(r">\s+<", "><", svg)
