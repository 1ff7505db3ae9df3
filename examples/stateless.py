"""Stateless: a plan in, a page out, stage by stage. No store, no lock, nothing else written.

python examples/stateless.py PLAN.json PAGE.md
"""

import sys
from pathlib import Path

from holdfast.contrib.task_lifetimes import job


@job("stateless")
def tidy(plan: dict) -> dict:
    """The same plan always gives the same result."""
    items = [{"id": item["id"], "name": item["name"].strip().lower()} for item in plan["items"]]
    return {"title": plan["title"], "items": [item for item in items if item["name"]]}


@job("stateless")
def render(plan: dict) -> str:
    lines = [f"- {item['id']}: {item['name']}" for item in plan["items"]]
    return "\n".join([f"# {plan['title']}", "", *lines, ""])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    between = target.with_suffix(".json")
    tidy.run(source, between)  # one stage's output is the next one's input
    render.run(between, target)
    print(target.read_text(), end="")
