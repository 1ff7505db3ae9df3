"""A grid search finds the best temperature; the rule that uses it follows the search.

python examples/temperature.py STORE
"""

import sys

import holdfast

GRID = (0.0, 0.3, 0.7, 1.0)


def score(temperature, target):
    return -abs(temperature - target)


@holdfast.rule
def best_temperature(search):
    return {"temperature": search["best"]}


@holdfast.node(ttl="7d")
def search(ctx):
    """Expensive: done again only when the task changes, the grid does, or a week is over."""
    target = ctx.read("global", "target", 0.5)
    best = max(GRID, key=lambda one: score(one, target))
    return {"best": best, "scores": {str(one): score(one, target) for one in GRID}}


@holdfast.node
def settings(ctx):
    ctx.rule(best_temperature, reads=("search",))


tuning = holdfast.Graph("tuning", [search, settings])

if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as store:
        for target in (0.6, 0.65, 0.1):
            store.global_()["target"] = target
            walk = store.nodes.process(tuning, store.conversation("c1"))
            print(target, walk.counts["computed"], walk.resolve().settings)
