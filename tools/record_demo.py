"""Records `make demo` on a terminal, and draws the recording as an animated picture.

    python tools/record_demo.py            runs the demo, writes docs/site/demo.cast, then draws it
    python tools/record_demo.py --draw     draws docs/demo.svg from the recording that is there

The recording is an asciicast, version 2: what the demo printed, and when. The picture needs no
script, so it moves wherever a picture is shown. The demo takes two seconds, in which nobody can
read it, so each line stays a little longer than it did.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import sys
import termios
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAST = ROOT / "docs/site/demo.cast"
PICTURE = ROOT / "docs/demo.svg"
COLUMNS, ROWS = 84, 26
LINE_S = 0.3
HEADING_S = 1.2
PAUSE_S_MAX = 1.5
END_S = 6.0
WIDE, HIGH, EDGE = 8.0, 18, 14
"""A character's width, a line's height and the margin, in units of the picture."""
COLOURS = {"32": "#7ee787", "36": "#79c0ff", "1": "#ffffff"}
STYLED = re.compile(r"\x1b\[(\d+)m")


def record() -> None:
    """Runs `make demo` on a terminal of its own, and writes down what it prints and when."""
    shutil.rmtree(ROOT / "demo-store", ignore_errors=True)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.environ.pop("NO_COLOR", None)
        os.execvp("make", ["make", "--silent", "demo"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began = time.monotonic()
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "make demo"}
    lines = [json.dumps(header)]
    with open(terminal, "rb", buffering=0) as output:
        while printed := _read(output.fileno()):
            event = [round(time.monotonic() - began, 3), "o", printed.decode()]
            lines.append(json.dumps(event, ensure_ascii=False))
    _child, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"the demo failed with exit status {os.waitstatus_to_exitcode(status)}")
    CAST.write_text("\n".join(lines) + "\n", "utf-8")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux says when the last program on a terminal has ended
        return b""


def recorded_lines() -> list[tuple[float, str]]:
    """Returns the lines of the recording with the second at which each began."""
    _header, *events = CAST.read_text("utf-8").splitlines()
    found: list[tuple[float, str]] = [(0.0, "")]
    for event in events:
        second, _kind, text = json.loads(event)
        for number, part in enumerate(text.replace("\r", "").split("\n")):
            if number:
                found.append((second, part))
            else:
                found[-1] = (found[-1][0], found[-1][1] + part)
    return found


def drawn_lines() -> list[tuple[float, str]]:
    """Returns what the picture shows, line by line, with the seconds that each waits."""
    drawn = [(HEADING_S, "$ make demo")]
    before = 0.0
    for second, line in recorded_lines():
        pause = max(LINE_S, min(second - before, PAUSE_S_MAX))
        before = second
        if line.startswith("\x1b[1m"):
            pause = HEADING_S
        styles, plain = "".join(STYLED.findall(line)[:1]), STYLED.sub("", line)
        for start in range(0, max(len(plain), 1), COLUMNS):
            piece = plain[start : start + COLUMNS]
            drawn.append((pause, f"\x1b[{styles}m{piece}" if styles else piece))
            pause = 0.0
    while not STYLED.sub("", drawn[-1][1]).strip():
        drawn.pop()
    return drawn


def picture() -> str:
    """Returns the recording as an SVG: a curtain goes down line by line, then the text goes up."""
    lines = drawn_lines()
    total = sum(pause for pause, _ in lines) + END_S
    shows: list[str] = []
    scrolls: list[str] = []
    texts: list[str] = []
    second = 0.0
    for number, (pause, line) in enumerate(lines):
        second += pause
        percent = f"{100 * second / total:.3f}%"
        shows.append(f"{percent}{{transform:translateY({(number + 1) * HIGH}px)}}")
        if number >= ROWS:
            scrolls.append(f"{percent}{{transform:translateY({(ROWS - 1 - number) * HIGH}px)}}")
        style = STYLED.match(line)
        colour = f' fill="{COLOURS[style[1]]}"' if style else ""
        if text := STYLED.sub("", line):
            place = f'x="{EDGE}" y="{EDGE + number * HIGH + 13}"'
            texts.append(f'<text {place}{colour} xml:space="preserve">{escape(text)}</text>')
    wide, high = round(2 * EDGE + COLUMNS * WIDE), 2 * EDGE + ROWS * HIGH
    long = (len(lines) + ROWS) * HIGH
    timing = f"{total:.1f}s step-end infinite"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">
<title>A recording of make demo</title>
<style>
text{{font:13.3px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}}
.curtain{{animation:show {timing}}}
.scroll{{animation:scroll {timing}}}
@keyframes show{{0%{{transform:translateY({HIGH}px)}}{"".join(shows)}}}
@keyframes scroll{{0%{{transform:translateY(0)}}{"".join(scrolls)}}}
@media (prefers-reduced-motion:reduce){{.curtain{{display:none}}.scroll{{animation:none}}}}
</style>
<clipPath id="window"><rect x="0" y="{EDGE}" width="{wide}" height="{high - 2 * EDGE}"/></clipPath>
<rect width="{wide}" height="{high}" rx="8" fill="#0d1117"/>
<g clip-path="url(#window)"><g class="scroll" fill="#c9d1d9">
{chr(10).join(texts)}
<rect class="curtain" x="0" y="{EDGE}" width="{wide}" height="{long}" fill="#0d1117"/>
</g></g>
</svg>
"""


def main(words: list[str]) -> int:
    if "--draw" not in words:
        record()
    PICTURE.write_text(picture(), "utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(drawn_lines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
