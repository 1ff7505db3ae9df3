"""Verbs on who shares a store: workers, groups."""

from __future__ import annotations

from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading
from holdfast.cli.printing import print_json, print_note, print_table
from holdfast.cli.shapes import show_time, time_text
from holdfast.workers import Worker


def workers(*, suspects: Flag = False, options: Options = DEFAULTS) -> None:
    """List the workers: who lives, who is silent, what each holds.

    Parameters
    ----------
    suspects
        Only those that are silent past their lease.
    """
    with open_reading(options) as store:
        found = store.suspects() if suspects else store.workers()
    if options.json:
        print_json({"workers": [worker_shape(worker) for worker in found]})
        return
    rows = [
        (
            worker.id,
            "alive" if worker.alive else "silent",
            f"{worker.silent_s:.1f} s",
            "" if worker.pid is None else f"{worker.host}:{worker.pid}",
            worker.actor or "",
            ", ".join([*worker.leases, *("/".join(claim) for claim in worker.claims)]),
        )
        for worker in found
    ]
    if rows:
        print_table(("worker", "", "last heartbeat", "process", "actor", "holds"), rows)
    else:
        print_note("no suspects" if suspects else "no workers")


def worker_shape(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.id,
        "alive": worker.alive,
        "silent_s": worker.silent_s,
        "last_heartbeat": time_text(worker.last_heartbeat),
        "host": worker.host,
        "pid": worker.pid,
        "actor": worker.actor,
        "started": worker.started and time_text(worker.started),
        "leases": worker.leases,
        "claims": [{"index": index, "key": key} for index, key in worker.claims],
    }


def groups(*, options: Options = DEFAULTS) -> None:
    """List the consumer groups: where each is, who gets its deliveries, how far behind it is."""
    with open_reading(options) as store:
        found = store.groups()
    if options.json:
        shapes = [
            {
                "group": group.name,
                "position": None if group.position is None else int(group.position),
                "member": group.member,
                "lag_events": group.lag_events,
                "waiting_since": group.waiting_since and time_text(group.waiting_since),
            }
            for group in found
        ]
        print_json({"groups": shapes})
        return
    rows = [
        (
            group.name,
            group.member or "",
            "?" if group.lag_events is None else str(group.lag_events),
            show_time(group.waiting_since) if group.waiting_since else "",
            "of another store" if group.position is None else str(int(group.position)),
        )
        for group in found
    ]
    if rows:
        print_table(("group", "member", "behind", "waiting since", "position"), rows)
    else:
        print_note("no groups")
