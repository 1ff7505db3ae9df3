"""Tasks that each build on the result of the one before, killed anywhere and gone on with.

    python examples/tasks.py files PLACE [COUNT]
    python examples/tasks.py sqlite PLACE [COUNT]

Part A keeps one `task_N_result.json` a task, which anybody can read; part B keeps one row of
state a task, in SQLite. In both, the position is a run's: calling again goes on at the first task
that is not done, and gives the same result.
"""

import json
import os
import random
import sys
from pathlib import Path

import holdfast

INSTRUCTIONS = [
    "Generate a list of 5 random words",
    "Sort the previous list alphabetically",
    "Reverse each word in the sorted list",
    "Join the reversed words with hyphens",
    "Count the total characters in the result",
]
WORDS = ["anchor", "beacon", "cable", "dock", "ebb", "fathom", "gale", "harbour", "jetty", "keel"]


def make_tasks(count=5, seed=7):
    """The five tasks, over and over: the count that one round ends with begins the next."""
    return [
        {"id": number + 1, "instruction": INSTRUCTIONS[number % 5], "seed": seed}
        for number in range(count)
    ]


def process(task, previous):
    """Does one task; a model would be asked here."""
    kind = INSTRUCTIONS.index(task["instruction"])
    if kind == 0:
        return random.Random(f"{task['seed']} {task['id']} {previous}").choices(WORDS, k=5)
    if kind == 1:
        return sorted(previous)
    if kind == 2:
        return [word[::-1] for word in previous]
    if kind == 3:
        return "-".join(previous)
    return len(previous)


# --- part A: files -------------------------------------------------------------------------------


def write_atomically(path, value):
    """The file is there whole, or not at all, whenever the power goes."""
    torn = path.with_suffix(".tmp")
    with open(torn, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(torn, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def result_path(state_dir, number):
    return Path(state_dir) / f"task_{number}_result.json"


@holdfast.step(effect="idempotent")
def do_to_file(task, previous, state_dir):
    """Idempotent: done twice, it leaves the same file."""
    result = process(task, previous)
    write_atomically(result_path(state_dir, task["id"]), result)
    return result


@holdfast.run(name="tasks:files")
def by_files(ctx, tasks, state_dir):
    return ctx.fold(
        "tasks", tasks, body=lambda ctx, last, task: ctx.step(do_to_file, task, last, state_dir)
    )


def process_tasks_file(tasks, state_dir):
    """Part A: returns the last result; called again after a crash, it goes on."""
    Path(state_dir).mkdir(parents=True, exist_ok=True)
    with holdfast.open(Path(state_dir) / "store") as store:
        run = store.runs.start(by_files, tasks, str(state_dir), id="tasks", if_exists="attach")
        return run.result()


# --- part B: SQLite ------------------------------------------------------------------------------


@holdfast.run(name="tasks:sqlite")
def by_sqlite(ctx, tasks):
    def one(ctx, last, task):
        def do(tx, task, last):
            result = process(task, last)
            tx.scope(ctx.state).set(str(task["id"]), result)
            return result

        return ctx.txn(do, task, last)  # the row, and that it is done, are one commit

    return ctx.fold("tasks", tasks, body=one)


def process_tasks_sqlite(tasks, db_path):
    """Part B: the same, in one database."""
    with holdfast.open(f"sqlite:{db_path}") as store:
        return store.runs.start(by_sqlite, tasks, id="tasks", if_exists="attach").result()


def result_of(db_path, number):
    """What was the result of task N? KeyError if it is not complete."""
    with holdfast.open(f"sqlite:{db_path}", create=False) as store:
        return store.workflow("tasks").state[str(number)]


def incomplete(tasks, db_path):
    """The tasks that are still to be done."""
    with holdfast.open(f"sqlite:{db_path}", create=False) as store:
        done = store.workflow("tasks").state
        return [task["id"] for task in tasks if str(task["id"]) not in done]


VARIANTS = {"files": process_tasks_file, "sqlite": process_tasks_sqlite}

if __name__ == "__main__":
    kind, place, count = sys.argv[1], sys.argv[2], int(*sys.argv[3:4] or [5])
    print(json.dumps(VARIANTS[kind](make_tasks(count), place)))
