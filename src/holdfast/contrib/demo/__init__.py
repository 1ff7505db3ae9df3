"""The demo: a support team whose agents share state, crash, conflict and rewind.

agent      one agent, a process of its own, and the run that it executes
scenes     what happens, scene by scene, and what is claimed about it
story      what was said and claimed so far
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import holdfast
from holdfast.contrib.demo import scenes
from holdfast.contrib.demo.story import Command, Print, Story
from holdfast.errors import UnavailableError

Backend = Literal["files", "sqlite"]
ATTEMPTS_MAX = 10_000


def run_demo(folder: Path, backend: Backend, *, show: Print, command: Command) -> Story:
    """Plays every scene on a new store in a folder, and returns what was said and claimed.

    `show` gets each line with its style as it happens; `command` makes of a verb and a store the
    command to type.
    """
    place = str(folder) if backend == "files" else f"sqlite:{folder / 'state.db'}"
    story = Story(place, show=show, command=command)
    with holdfast.open(place, actor="lead") as store:
        scenes.open_morning(store, story)
        inbox, count = scenes.work_and_kill(store, story)
        scenes.find_what_is_there(store, story, inbox)
        scenes.resume(store, story, inbox, count)
        scenes.kill_a_run(store, story, str(folder / "outbox.jsonl"))
        scenes.refuse_and_retry(store, story)
        scenes.rewind(store, story)
        scenes.check_everything(store, story)
    return story


def make_folder(wanted: Path) -> Path:
    """Creates and returns a new folder: the one wanted, or the next free name beside it.

    The demo never writes into a folder that exists, so it can harm nobody's data.
    """
    for number in range(1, ATTEMPTS_MAX):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UnavailableError(
                f'"{folder}" cannot be created: {error.strerror}', hint="choose another --dir"
            ) from error
        return folder
    raise UnavailableError(
        f'"{wanted}" and {ATTEMPTS_MAX} names beside it are taken', hint="choose another --dir"
    )
