"""Renders docs/performance.md from runs: no figure in it is kept by hand.

    python -m bench.report                 the newest full run of each benchmark in bench/out
    python -m bench.report RUN.json ...    these runs only
    python -m bench.report --quick         quick runs too: to see how it looks, never to publish
    python -m bench.report --again         from docs/performance/figures.json, as it was published

What is published goes to docs/performance/figures.json, the plots beside it, and the tables between
the marks `<!-- figures: NAME -->` and `<!-- end -->` of the page.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.harness import OUT, ROOT, cell

PAGE = ROOT / "docs" / "performance.md"
PLACE = ROOT / "docs" / "performance"
FIGURES = PLACE / "figures.json"
PYTHON = ROOT / ".venvs" / "plots" / "bin" / "python"
MARKED = re.compile(
    r"(<!-- figures: (?P<name>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL | re.MULTILINE
)
SAME = ("processor", "processors", "memory_gib", "kernel", "file_system", "python", "sqlite")
"""What must be equal for two runs to stand on one page."""
WORDS = {
    "what": "contender",
    "n": "size",
    "per_s": "per second",
    "total_s": "whole, s",
    "steps_per_s": "steps per second",
    "runs_per_s": "runs per second",
    "with_start_s": "with process start, s",
    "kib": "KiB stored",
    "cpu_us": "processor time, µs",
    "bytes_mean": "bytes, mean",
    "files_times_as_fast": "files is times as fast",
    "sqlite_times_as_fast": "SQLite is times as fast",
    "stored_per_said": "bytes stored per byte said",
    "commit_per_bare": "commit / bare",
    "other_per_bare": "other / bare",
    "ten_per_bare": "ten / bare",
    "check_us_per_event": "check, µs an event",
    "bare_check_us": "bare check, µs",
    "times_files": "/ holdfast files",
    "times_sqlite": "/ holdfast SQLite",
}


def gather(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the newest of each benchmark over runs that were made on one machine."""
    parts: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    for run in sorted(runs, key=lambda run: run["started"]):
        described = {name: run["machine"].get(name) for name in SAME}
        if machine and described != {name: machine.get(name) for name in SAME}:
            raise SystemExit(f"run {run['started']} was made on another machine than those before")
        machine = {**run["machine"]}
        loads = machine.pop("load")
        for name, report in run["reports"].items():
            parts[name] = {**report, "started": run["started"], "quick": run["quick"],
                           "load": loads["before"]}  # fmt: skip
    return {"machine": machine, "parts": parts}


def load_runs(paths: Sequence[Path], *, quick: bool) -> list[dict[str, Any]]:
    """Returns the runs of those files, or all that may be published, with a machine described."""
    found = [json.loads(path.read_text()) for path in paths or sorted(OUT.glob("*.json"))]
    if not paths:
        found = [run for run in found if "file_system" in run["machine"]]
        found = [run for run in found if quick or not run["quick"]]
    if not found:
        raise SystemExit("no full run in bench/out: make one with `make bench`")
    return found


def render(page: str, figures: dict[str, Any]) -> str:
    """Returns the page with every marked place filled from the figures."""

    def fill(match: re.Match[str]) -> str:
        return match[1] + block(match["name"], figures) + match[3]

    return MARKED.sub(fill, page)


def block(name: str, figures: dict[str, Any]) -> str:
    """Returns what stands between the marks of one name."""
    if name == "machine":
        return _machine(figures)
    if name == "bars":
        return _bars(figures["parts"])
    part = figures["parts"].get(name)
    if part is None:
        return "*Not measured in the published runs.*\n"
    lines = [f"*{part['title']}. Durability: {part['durability']}.*", ""]
    # Rows of one shape stand in one table; a change of shape begins another.
    for _, rows in groupby(part["rows"], key=lambda row: tuple(sorted(row))):
        lines += [*table(list(rows)), ""]
    lines += [f"- {note[0].upper()}{note[1:]}." for note in part["notes"]]
    if part["releases"]:
        named = {name: text for name, text in part["releases"].items() if name != text}
        releases = sorted(set(named.values()))
        lines.append(f"- Measured: {', '.join(releases)}.")
    return "\n".join(lines).rstrip("\n") + "\n"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the rows as a Markdown table, numbers to the right."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    columns.sort(key=lambda column: column not in ("doing", "kind", "what"))
    text = ("what", "doing", "kind")
    lines = ["| " + " | ".join(title(column) for column in columns) + " |"]
    lines.append("| " + " | ".join("---" if c in text else "---:" for c in columns) + " |")
    for row in rows:
        cells = [cell(row.get(column)).replace("|", "/") for column in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def title(column: str) -> str:
    """Returns a column's name in words: `turn_10_p50_ms` is `turn 10 p50, ms`."""
    if column in WORDS:
        return WORDS[column]
    for unit, word in (("_ms", "ms"), ("_us", "µs")):
        if column.endswith(unit):
            return f"{column.removesuffix(unit).replace('_', ' ')}, {word}"
    return column.replace("_", " ")


def _machine(figures: dict[str, Any]) -> str:
    machine, parts = figures["machine"], figures["parts"]
    kind = "virtual machine" if machine["virtual"] else "machine"
    versions = ", ".join(f"{name} {text}" for name, text in machine["versions"].items() if text)
    started = sorted({part["started"][:8] for part in parts.values()})
    days = " and ".join(f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in started)
    highest = max(part["load"] for part in parts.values())
    lines = [
        f"- {machine['processor']}, {machine['processors']} processors, "
        f"{machine['memory_gib']} GiB of memory, {kind}",
        f"- {machine['kernel']}, {machine['file_system']}",
        f"- Python {machine['python']}, SQLite {machine['sqlite']}, {versions}",
        f"- {days}; load average before a run {highest:.1f} at most; "
        f"{sum(part['seconds'] for part in parts.values()) / 60:.0f} minutes in all",
    ]
    if any(part["quick"] for part in parts.values()):
        lines.append("- **Quick runs: they show that everything works, not what it costs.**")
    return "\n".join(lines) + "\n"


def _bars(parts: dict[str, Any]) -> str:
    lines = ["| | what | asked | found | |", "| --- | --- | ---: | ---: | --- |"]
    for name, part in parts.items():
        for bar in part["bars"]:
            verdict = "kept" if bar["kept"] else "**missed**"
            lines.append(
                f"| {name} | {bar['what']} | {bar['asked']} | {bar['found']} | {verdict} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report")
    parser.add_argument("runs", nargs="*", type=Path, help="runs; by default all of bench/out")
    parser.add_argument("--quick", action="store_true", help="quick runs too")
    parser.add_argument("--again", action="store_true", help="from the published figures")
    arguments = parser.parse_args()
    if arguments.again:
        figures = json.loads(FIGURES.read_text())
    else:
        figures = gather(load_runs(arguments.runs, quick=arguments.quick))
        PLACE.mkdir(parents=True, exist_ok=True)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(render(PAGE.read_text(), figures))
    subprocess.run([PYTHON, ROOT / "bench" / "plots.py", FIGURES, PLACE], check=True)
    print(f"{PAGE.relative_to(ROOT)} and its plots show {', '.join(figures['parts'])}")


if __name__ == "__main__":
    main()
