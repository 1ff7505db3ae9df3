"""Draws the plots of docs/performance.md from its figures: plots.py FIGURES.json DIRECTORY.

Runs in an environment of its own, since it alone needs matplotlib. It reads and never measures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

COLOURS = {
    "files": "#1668b8",
    "sqlite": "#d9701a",
    "SqliteSaver.put": "#7a3fa0",
    "AsyncSqliteSaver.aput": "#b277c9",
    "graph + SqliteSaver": "#a01f2f",
    "graph + SqliteSaver + DeltaChannel": "#d9808a",
    "graph in memory": "#4f8f5f",
}
BARE = "#8a8f94"
PEER = "#b9bec4"
MARKERS = {"files": "o", "sqlite": "s"}

Part = dict[str, Any]


def colour(name: str) -> str:
    """Returns the colour that a contender has in every plot."""
    if name.startswith("bare"):
        return BARE
    return COLOURS.get(name.removeprefix("holdfast "), PEER)


def number(value: float, _position: int | None = None) -> str:
    """Returns an axis label that a person reads: 0.1, 20, 5,000, 1 M."""
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:g}"


def figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    drawn, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
    drawn.get_layout_engine().set(wspace=0.06, w_pad=0.08)
    return drawn, [axes] if columns == 1 else list(axes)


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10.5, loc="left", pad=8)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, which="major", color="#e4e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def log_axis(axis: Any, values: Sequence[float]) -> None:
    """Puts an axis on a log scale with labels at 1, 2 and 5, or at powers where there are many."""
    low, high = min(values), max(values)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    powers = [10.0**power for power in range(-6, 9)]
    at = [step * power for power in powers for step in steps]
    axis.set_major_locator(matplotlib.ticker.FixedLocator(at))
    axis.set_major_formatter(FuncFormatter(number))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def curves(
    axes: Axes,
    rows: Sequence[dict[str, Any]],
    column: str,
    *,
    bare: str | None = None,
    each: bool = False,
    log: bool = True,
) -> None:
    """Draws one column by size, a line for each kind; a bare column is dashed.

    `each`: the bare loop differs by kind, so it is drawn for each in that kind's colour.
    """
    seen: list[float] = []
    sizes = sorted({row["n"] for row in rows})
    for kind in ("files", "sqlite"):
        own = [row for row in rows if row["kind"] == kind]
        xs, ys = [row["n"] for row in own], [row[column] for row in own]
        axes.plot(xs, ys, color=colour(kind), marker=MARKERS[kind], markersize=5, linewidth=1.8,
                  label=f"holdfast {kind}")  # fmt: skip
        seen += ys
        if bare and (each or kind == "sqlite"):
            floor = [row[bare] for row in own]
            style = colour(kind) if each else BARE
            label = f"bare loop, {kind}" if each else "bare loop"
            axes.plot(xs, floor, color=style, linestyle="--", linewidth=1.3, label=label)
            seen += floor
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(number))
    axes.xaxis.set_minor_locator(NullLocator())
    if log:
        axes.set_yscale("log")
        low, high = min(seen), max(seen)
        # A curve that hardly moves must look flat: an axis spans a factor of twenty at least.
        middle, half = (low * high) ** 0.5, max((high / low) ** 0.5 * 1.4, 20**0.5)
        axes.set_ylim(middle / half, middle * half)
        log_axis(axes.yaxis, [middle / half, middle * half])
    else:
        axes.set_ylim(0, max(seen) * 1.25)
        axes.yaxis.set_major_formatter(FuncFormatter(number))
    axes.legend(frameon=False, fontsize=8.5)


def conversation(part: Part, title: str) -> Figure:
    """Milliseconds of a turn, along a conversation."""
    drawn, (axes,) = figure(8, 4.6)
    seen: list[float] = []
    for name, points in part["series"].items():
        ys = [y for _, y in points]
        seen += ys
        thick = 2.2 if name.startswith("holdfast") else 1.5
        style = "--" if name.startswith("bare") else "-"
        axes.plot([x for x, _ in points], ys, style, color=colour(name), linewidth=thick,
                  label=name)  # fmt: skip
    axes.set_yscale("log")
    log_axis(axes.yaxis, seen)
    axes.set_xlim(0, None)
    axes.xaxis.set_major_formatter(FuncFormatter(number))
    dress(axes, title, "turn of the conversation", "milliseconds a turn (median, log scale)")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", ncols=2)
    axes.set_ylim(min(seen) * 0.7, max(seen) * 4)
    return drawn


def peers(parts: dict[str, Part]) -> Figure:
    """How many times as fast as each peer, operation by operation."""
    names = [name for name in ("b", "graph", "adk", "agents", "eventsourcing", "agentfs")
             if name in parts]  # fmt: skip
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for name in names:
        for speed in parts[name]["speeds"]:
            # In WAL a service reads as it does without: only its appends are shown again.
            again = speed["what"].endswith(", WAL") and speed["doing"] != "append"
            if not again and not speed["what"].startswith(("bare", "graph in memory")):
                found.setdefault((speed["what"], speed["doing"]), {})[speed["kind"]] = speed
    firsts = list(dict.fromkeys(what for what, _ in found))
    found = dict(sorted(found.items(), key=lambda one: firsts.index(one[0][0])))
    drawn, (axes,) = figure(9, 1.6 + 0.34 * len(found))
    labels: list[str] = []
    ends: list[float] = [1.0]
    for place, ((what, doing), kinds) in enumerate(found.items()):
        labels.append(f"{what}: {doing}")
        for kind, shift in (("files", -0.19), ("sqlite", 0.19)):
            speed = kinds[kind]
            times, low, high = speed["times"], speed["low"], speed["high"]
            ends += [times, high]
            axes.barh(place + shift, times - 1, left=1, height=0.36, color=colour(kind),
                      label=f"holdfast {kind}" if place == 0 else None)  # fmt: skip
            axes.plot([low, high], [place + shift] * 2, color="#222222", linewidth=1)
    axes.axvline(1, color="#222222", linewidth=1)
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    whats = [what.removesuffix(", WAL") for what, _ in found]
    for place in range(1, len(whats)):
        if whats[place] != whats[place - 1]:
            axes.axhline(place - 0.5, color="#c9cdd1", linewidth=0.8)
    axes.set_xscale("log")
    log_axis(axes.xaxis, [1, 1e4])
    title = "Times as fast as a peer at the same work (right of 1: holdfast is faster)"
    dress(axes, title, "times as fast, log scale; the thin line is the 95 % interval", "")
    axes.set_xlim(min(0.1, *ends) * 0.8, max(ends) * 1.5)
    drawn.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=2)
    return drawn


def events(part: Part) -> Figure:
    drawn, (opening, commit, check) = figure(13, 4, 3)
    rows = part["rows"]
    x = "events in the store"
    curves(opening, [{**row, "both": row["open_ms"] + row["newest_ms"]} for row in rows], "both")
    dress(opening, "Open a store and read one scope's newest state", x, "milliseconds")
    curves(commit, rows, "commit_per_bare", log=False)
    dress(commit, "One commit, against a bare loop", x, "times the bare loop")
    curves(check, rows, "check_us_per_event", bare="bare_check_us")
    dress(check, "Check of the whole store", x, "microseconds an event")
    return drawn


def streams(part: Part) -> Figure:
    drawn, (opening, listing, commit) = figure(13, 4, 3)
    rows = part["rows"]
    x = "scopes in the store"
    curves(opening, rows, "open_ms")
    dress(opening, "Open a store", x, "milliseconds")
    curves(listing, rows, "list_ms")
    dress(listing, "List all scopes", x, "milliseconds")
    curves(commit, rows, "other_per_bare", log=False)
    title = "One commit, each to another scope"
    dress(commit, title, x, "times the bare loop")
    return drawn


def keys(part: Part) -> Figure:
    drawn, (one, get, opening) = figure(13, 4, 3)
    rows = part["rows"]
    x = "keys in the state"
    curves(one, rows, "commit_per_bare", log=False)
    dress(one, "Set one key, one commit", x, "times the bare loop")
    curves(get, rows, "get_us")
    dress(get, "Get one key, in process", x, "microseconds")
    curves(opening, rows, "open_and_get_ms")
    dress(opening, "Open the store and get one key", x, "milliseconds")
    return drawn


def writers(part: Part) -> Figure:
    drawn, (rate, latency) = figure(10, 4.2, 2)
    rows = part["rows"]
    x = "asyncio writers in one process"
    curves(rate, rows, "per_s", bare="bare_per_s", each=True)
    dress(rate, "Durable commits a second, all writers together", x, "commits a second")
    curves(latency, rows, "p50_ms")
    dress(latency, "How long one commit takes (median)", x, "milliseconds")
    return drawn


def processes(part: Part) -> Figure:
    drawn, (rate, fair) = figure(10, 4.2, 2)
    rows = part["rows"]
    x = "processes on one store"
    curves(rate, rows, "per_s", bare="bare_per_s", each=True, log=False)
    dress(rate, "Durable commits a second, all processes together", x, "commits a second")
    curves(fair, rows, "least_of_most", bare="bare_least_of_most", each=True, log=False)
    dress(fair, "Fairness: commits of the slowest for each of the fastest", x, "share; 1 is fair")
    fair.set_ylim(0, 1.1)
    return drawn


def instructions(part: Part) -> Figure:
    rows = sorted(part["rows"], key=lambda row: row["instructions"])
    drawn, (axes,) = figure(8.5, 1.2 + 0.36 * len(rows))
    for place, row in enumerate(rows):
        axes.barh(place, row["instructions"] / 1e3, height=0.62, color=colour(row["what"]))
        axes.text(row["instructions"] / 1e3 * 1.06, place, number(row["instructions"] / 1e3),
                  va="center", fontsize=8.5)  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xscale("log")
    counted = [row["instructions"] / 1e3 for row in rows]
    log_axis(axes.xaxis, counted)
    axes.set_xlim(min(counted) * 0.6, max(counted) * 2)
    title = "Instructions of one commit of one 1 KB message, outside the kernel"
    dress(axes, title, "thousands of instructions, log scale", "")
    return drawn


DRAWN: dict[str, Callable[[Part], Figure]] = {
    "b": lambda part: conversation(part, "A turn of a conversation, beside LangGraph's savers"),
    "graph": lambda part: conversation(part, "A turn of a conversation, beside LangGraph graphs"),
    "events": events,
    "streams": streams,
    "keys": keys,
    "writers": writers,
    "processes": processes,
    "instructions": instructions,
}
NAMES = {"b": "conversation"}


def main() -> None:
    parts: dict[str, Part] = json.loads(Path(sys.argv[1]).read_text())["parts"]
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({"font.size": 9.5, "axes.edgecolor": "#9aa0a6", "savefig.dpi": 130})
    drawn = {NAMES.get(name, name): draw(parts[name])
             for name, draw in DRAWN.items() if parts.get(name, {}).get("rows")}  # fmt: skip
    drawn["peers"] = peers(parts)
    for name, one in drawn.items():
        # No date and no version of the program in it: the same figures give the same bytes.
        one.savefig(place / f"{name}.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
