"""A picture of a run as SVG, from what `--json` saves: bars of time over the limit, and the roofline.

Left: for each workload the time of every peer as a multiple of the machine's limit, on a logarithmic axis.
Right: operations a byte against operations a second, with the two limits of the machine (Williams,
Waterman, Patterson: Roofline, CACM 2009) and planish's and the best peer's point of each workload.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

COLOURS = {"planish": "#0b6e4f", "planish-torch": "#37a983", "library": "#b9d8cc", "numpy": "#999999",
           "eager": "#e07a5f", "inductor": "#c8553d", "inductor-freezing": "#8f2d1d", "ort": "#3d5a80",
           "openvino": "#7d98bf", "jax": "#f2b134"}
BAR, GAP, LEFT, WIDTH, SIDE = 9, 16, 250, 520, 460
STYLE = "font: 12px system-ui, sans-serif"


def svg(saved: dict[str, Any]) -> str:
    """The whole picture; `saved` is `report.as_json`'s."""
    rows = [r for r in saved["results"] if any("min_s" in o for o in r["outcomes"])]
    height = 60 + sum(BAR * len(timed(r)) + GAP for r in rows)
    height, width = max(height, SIDE + 60), LEFT + WIDTH + SIDE + 100
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{STYLE}">',
        '<rect width="100%" height="100%" fill="white"/>',
        *legend(rows), *bars(rows), *roofline(rows, saved), "</svg>\n"])


def timed(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [o for o in row["outcomes"] if "min_s" in o]


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#cccccc") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def legend(rows: list[dict[str, Any]]) -> Iterator[str]:
    present = dict.fromkeys(o["peer"] for r in rows for o in timed(r))
    x = 10.0
    for peer in present:
        yield f'<rect x="{x}" y="10" width="10" height="10" fill="{COLOURS.get(peer, "black")}"/>'
        yield text(x + 14, 19, peer)
        x += 30 + 7 * len(peer)


def bars(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Times over the limit, from 1 on the left to the slowest of all."""
    most = max((o["min_s"] / r["limit_s"] for r in rows for o in timed(r)), default=10)
    decades = max(1.0, math.log10(most))

    def across(multiple: float) -> float:
        return LEFT + WIDTH * max(0.0, math.log10(multiple)) / decades

    y = 50.0
    for r in rows:
        yield text(LEFT - 8, y + 9, r["title"], "end")
        for o in timed(r):
            multiple = o["min_s"] / r["limit_s"]
            width = max(1.0, across(multiple) - LEFT)
            words = f"{o['peer']}: {o['min_s'] * 1e3:.3f} ms, {multiple:.2f} x limit"
            yield (f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 1}" '
                   f'fill="{COLOURS.get(o["peer"], "black")}"><title>{escape(words)}</title></rect>')
            y += BAR
        y += GAP
    for multiple in (1, 2, 5, 10, 20, 50, 100):
        if multiple <= most:
            yield line(across(multiple), 44, across(multiple), y - GAP)
            yield text(across(multiple), 42, f"{multiple}x", "middle")


def roofline(rows: list[dict[str, Any]], saved: dict[str, Any]) -> Iterator[str]:
    """The two limits and two points a workload."""
    peak, stream = saved["flops_per_second"], saved["stream_bytes_per_second"]
    points = [(r["cost"]["flops"] / (r["cost"]["read_bytes"] + r["cost"]["write_bytes"]), r) for r in rows]
    low, high = -1.0, max([3.0, *(math.log10(i) + 0.2 for i, _ in points)])
    bottom, top = 8.0, math.log10(peak) + 0.3
    left, upper, side = LEFT + WIDTH + 70, 50, SIDE - 40

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x, y = math.log10(intensity), max(bottom, math.log10(rate))
        return left + side * (x - low) / (high - low), upper + side * (top - y) / (top - bottom)

    ridge = at(peak / stream, peak)
    yield text(left, upper - 8, f"roofline: {peak / 1e9:.0f} GFLOP/s over {stream / 1e9:.0f} GB/s")
    yield text(left + side, upper + side + 14, "operations a byte", "end")
    yield line(*at(10**low, 10**low * stream), *ridge, "#333333")
    yield line(*ridge, *at(10**high, peak), "#333333")
    for intensity, r in points:
        others = [o for o in timed(r) if o["peer"] == r["best_peer"]]
        ours = sorted((o for o in timed(r) if o["peer"].startswith("planish")), key=lambda o: o["min_s"])[:1]
        for o in others + ours:
            x, y = at(intensity, r["cost"]["flops"] / o["min_s"])
            yield (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS.get(o["peer"], "black")}">'
                   f'<title>{escape(r["title"])}: {escape(o["peer"])}</title></circle>')
