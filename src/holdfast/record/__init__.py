"""The record: what was decided, said and claimed, by whom, why, and whether it still holds.

scope       Scope: a scope with its record; what `Store.scope` returns
book        Book: what all parts of one store's record share
thing       things with numbered events of their own, found and guarded by key
within      what of all this can be done in the body of a run
decision    a decision's events folded, old forms and new; pure
decisions   decisions written before the act, closed, listed; open_decision is the handle of one
recovery    what dead workers left open, judged and closed or done again
sweep       marks that lead nowhere any more
policy      nothing is done undecided
facts       claims about the world, verified, dated
stale       everything that is not to be trusted
task        a scope's task events folded into a table; pure
table       the table of a scope's tasks, kept, brought up to date and written by
owners      whether the owners of tasks live
tasks       tasks: added, claimed, closed
backlog     the tasks of all scopes; what becomes of them when a scope ends or goes back
memory      working memory: what an agent keeps at hand, each kind for its own time
messages    Messages: what was said, added; changing and history are the rest of that class
message     a message's events and fields; merging and repair are pure
scan        which messages are there, found from the newest end backwards
turns       brackets around messages, and whose worker is dead
commands    verifiers that are commands of the project's configuration
"""
