"""The record: what was decided, said and claimed, by whom, why, and whether it still holds.

scope       RecordedScope: a scope with its record; what `Store.scope` returns
book        Book: what all parts of one store's record share
thing       things with numbered events of their own, found and guarded by key
decision    a decision's events folded, old forms and new; pure
decisions   decisions written before the act, closed, listed
recovery    what dead workers left open, judged and closed or done again
policy      nothing is done undecided
facts       claims about the world, verified, dated
stale       everything that is not to be trusted
commands    verifiers that are commands of the project's configuration
"""
