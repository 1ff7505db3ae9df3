"""A document is written, reviewed and refined by a team until it is good enough.

python examples/review_team.py STORE TOPIC

The agents are scripted: each is a function where a program would call a model.
"""

import sys

import holdfast

CONVENTIONS = "Name things once. Cite what you claim. Code must run."


@holdfast.node
def system(ctx):
    """Core instructions and conventions."""
    ctx.message("system", CONVENTIONS)
    return CONVENTIONS


@holdfast.node
def author(ctx, system, topic, previous):
    """The author writes a document, and refines it by what the last round said."""
    draft = f"# {topic}" if previous is None else previous["author"]
    for remark in [] if previous is None else previous["team"]["remarks"]:
        draft += f"\n\n{remark.capitalize()}: done."
    ctx.message("author", draft)
    return draft


@holdfast.node
def editor(ctx, author):
    """The editor tidies what the author wrote."""
    return author.strip() + "\n"


@holdfast.node
def team(ctx, editor):
    """Reviewers, a fact checker and a code tester each say what is missing."""
    wanted = {"reviewers": "shorten", "fact checker": "cite sources", "code tester": "run the code"}
    remarks = [text for text in wanted.values() if f"{text.capitalize()}: done." not in editor]
    return {"remarks": remarks[:2], "by": sorted(wanted)}


@holdfast.node
def grader(ctx, editor, team):
    """The grader says how good it is."""
    grade = 10 - 3 * len(team["remarks"])
    ctx.message("grader", f"{grade} of 10")
    return grade


@holdfast.node
def publish(ctx, review):
    return review["editor"]


def good_enough(grade):
    return grade >= 9


review = holdfast.Graph("review", [author, editor, team, grader])
flow = holdfast.Graph("flow", [system, review.until("grader", good_enough, most=5), publish])

if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as store:
        walk = store.nodes.process(flow, store.conversation("doc"), topic=sys.argv[2])
        rounds = sum(name.startswith("review/grader@") for name in walk.states)
        print(f"{rounds} rounds, grade {walk['review/grader'].value}")
        print(walk.value("publish"))
