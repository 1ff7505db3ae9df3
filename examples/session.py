"""Session: state for the time of one job. Gone at its end, also if it is killed.

python examples/session.py [STORE]
"""

import sys

from holdfast.contrib.task_lifetimes import job

store = sys.argv[1] if len(sys.argv) > 1 else None


@job("session", store=store, ttl="2h")
def debug(session, symptom: str) -> str:
    session.say(symptom)
    session.memory.files.put("src/parser.py", {"why": "raises"})
    with session.decide("look at the parser first", because="the trace ends there") as decision:
        decision.outcome("an index is off by one")
    session.set("cause", "off by one")
    return f"{symptom}: {session.get('cause')}"


if __name__ == "__main__":
    print(debug.run("crash on empty input"))
