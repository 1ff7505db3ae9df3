"""A node picks the model for planning: recomputed only when the thread says something new.

python examples/picker.py STORE
"""

import sys

import holdfast

RIDDLES = ("riddle", "who am I", "what has")


@holdfast.rule
def model_for(flags, budget):
    """The rule stays the same; what it yields follows the flags."""
    model = "large" if flags["kind"] == "riddle-solving" else "small"
    return {"model": model, "max_tokens": budget if flags["long"] else budget // 4}


@holdfast.node
def system(ctx):
    ctx.message("system", "You plan before you act.")
    ctx.setting("temperature", 0.2)


@holdfast.node
def flags(ctx, thread):
    """An advanced picker would ask a model here; this one looks for words."""
    text = thread[-1].lower()
    kind = "riddle-solving" if any(word in text for word in RIDDLES) else "problem-solving"
    ctx.cost(tokens=len(text))
    return {"kind": kind, "long": len(thread) > 4}


@holdfast.node
def picker(ctx, flags):
    ctx.rule(model_for, reads=("flags",), budget=4000)
    if flags["kind"] == "riddle-solving":
        ctx.constrain("temperature", one_of=[0.2, 0.7])


planner = holdfast.Graph("planner", [system, flags, picker])


def pick(store, chat, thread):
    """Returns the walk, and what a model would be called with."""
    walk = store.nodes.process(planner, chat, thread=thread)
    return walk, walk.resolve()


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as store:
        chat = store.conversation("c1")
        for thread in (["Plan a trip."], ["Plan a trip."], ["A riddle for you."]):
            walk, resolved = pick(store, chat, thread)
            print(thread[-1], walk.counts["computed"], resolved.model, resolved.settings)
