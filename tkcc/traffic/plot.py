"""A profile's distributions as an SVG image: no library needed, opens in any browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from tkcc.traffic.profile import TrafficProfile
from tkcc.traffic.quantiles import GRID, Quantiles
from tkcc.traffic.summary import printable

_WIDTH, _HEIGHT, _LEFT, _TOP = 360, 200, 46, 34
_COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44")

Curve = tuple[str, Quantiles]


def draw_profile(profile: TrafficProfile) -> str:
    """Two panels: cumulative shares of lengths in tokens, and of times in seconds (log scales)."""
    lengths: list[Curve] = [("input", profile.input), ("output", profile.output)]
    if profile.sharing:
        lengths.append(("new input", profile.new))
    times: list[Curve] = [("gap of arrivals", profile.arrivals.gaps)]
    if profile.think:
        times.append(("think time", profile.think))
    if profile.sharing and profile.sharing.gaps:
        times.append(("gap of turns", profile.sharing.gaps))
    width, height = 2 * (_WIDTH + _LEFT) + 30, _HEIGHT + _TOP + 40
    body = _panel("tokens", lengths, 0) + _panel("seconds", times, _WIDTH + _LEFT + 10)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            _text(_LEFT, 18, printable(profile.name), 'font-size="14"'),
            *body,
            "</svg>\n",
        ]
    )


def _panel(unit: str, curves: Sequence[Curve], left: float) -> list[str]:
    low, high = _decades([table for _, table in curves])
    x0, y0 = left + _LEFT, _TOP

    def x(value: float) -> float:
        part = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return x0 + part * _WIDTH

    def y(share: float) -> float:
        return y0 + (1 - share) * _HEIGHT

    lines = [
        f'<rect x="{x0}" y="{y0}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#888"/>'
    ]
    for power in range(low, high + 1):
        lines.append(_text(x(10.0**power), y(0) + 16, f"{10.0**power:g}", _MIDDLE))
    for share in (0.0, 0.5, 0.9, 1.0):
        lines.append(_text(x0 - 6, y(share) + 4, f"{share:g}", 'text-anchor="end"'))
        lines.append(
            f'<line x1="{x0}" x2="{x0 + _WIDTH}" y1="{y(share):.1f}" '
            f'y2="{y(share):.1f}" stroke="#ddd"/>'
        )
    lines.append(_text(x0 + _WIDTH / 2, y(0) + 32, unit, _MIDDLE))
    for number, (name, table) in enumerate(curves):
        colour = _COLOURS[number]
        points = " ".join(f"{x(v):.1f},{y(q):.1f}" for q, v in zip(GRID, table.values, strict=True))
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        lines.append(_text(x0 + 8, y0 + 14 + 14 * number, name, f'fill="{colour}"'))
    return lines


_MIDDLE = 'text-anchor="middle"'


def _decades(tables: Sequence[Quantiles]) -> tuple[int, int]:
    """Powers of ten around nearly all values."""
    low = min(max(table.at(0.01), 1e-3) for table in tables)
    high = max(table.values[-1] for table in tables)
    first = math.floor(math.log10(low))
    return first, max(first + 1, math.ceil(math.log10(max(high, 1e-3))))


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
