"""The demo: a support team whose agents share state, crash, conflict and rewind.

story      the tickets, and what an agent thinks of them
agent      one agent: a process of its own
letters    a run that sends letters

scenes     what happens, and what is claimed about it
telling    how it is told
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import holdfast
from holdfast.cli.options import Flag
from holdfast.cli.printing import print_json, print_line
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError

ATTEMPTS_MAX = 10_000


def demo(
    *,
    dir: Annotated[str, Parameter(name="--dir")] = "demo-store",
    backend: Literal["files", "sqlite"] = "files",
    json: Flag = False,
) -> int:
    """See the point in under a minute: one agent is killed, nothing is lost.

    Parameters
    ----------
    dir
        The folder for the data, which stays; if it is taken, a new one is made beside it.
    backend
        What keeps the data: plain files, or a SQLite database in that folder.
    json
        Print one JSON document; errors are JSON too.
    """
    from holdfast.cli.demo import scenes
    from holdfast.cli.demo.telling import Telling

    folder = make_folder(Path(dir))
    place = str(folder) if backend == "files" else f"sqlite:{folder / 'state.db'}"
    telling = Telling(place, is_json=json)
    clock = SystemClock()
    start = clock.boot_us()
    with holdfast.open(place, actor="lead") as store:
        scenes.open_morning(store, telling)
        inbox, count = scenes.work_and_kill(store, telling)
        scenes.find_what_is_there(store, telling, inbox)
        scenes.resume(store, telling, inbox, count)
        scenes.kill_a_run(store, telling, str(folder / "outbox.jsonl"))
        scenes.refuse_and_retry(store, telling)
        scenes.rewind(store, telling)
        scenes.check_everything(store, telling)
    seconds = (clock.boot_us() - start) / 1_000_000
    if json:
        print_json({**telling.document(), "seconds": seconds})
    else:
        print_line()
        print_line(f"Done in {seconds:.1f} s. The data is in {folder}: try the commands above.")
    return 0 if telling.is_true else 1


def make_folder(wanted: Path) -> Path:
    """Makes and returns a folder of its own: the one wanted, or the next free name beside it.

    What is there already is never written into, so nobody's data can be harmed.
    """
    for number in range(1, ATTEMPTS_MAX):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UnavailableError(
                f'"{folder}" cannot be made: {error.strerror}', hint="choose another --dir"
            ) from error
        return folder
    raise UnavailableError(
        f'"{wanted}" and {ATTEMPTS_MAX} names beside it are taken', hint="choose another --dir"
    )
