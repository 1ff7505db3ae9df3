"""Persistent: what one job learned, the next one knows. Stateless jobs may serve within it.

python examples/persistent.py STORE QUESTION
"""

import sys

from holdfast.contrib.task_lifetimes import job


@job("persistent", store=sys.argv[1], scope="team/research")
def research(team, question: str) -> str:
    known = team.memory.notes.list()
    team.memory.notes.put(question, answer(question))
    task = team.tasks.add(f"check the answer to {question!r}", priority="low")
    return f"{len(known)} known before; {len(team.tasks.list(status='open'))} to check: {task.id}"


@job("stateless")
def answer(question: str) -> str:
    """A stateless agent inside a stateful system: called as the function that it is."""
    return question.upper()


if __name__ == "__main__":
    print(research.run(sys.argv[2]))
