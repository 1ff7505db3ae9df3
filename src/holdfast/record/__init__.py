"""The record: what was decided, said and claimed, by whom, why, and whether it still holds.

scope       RecordedScope: a scope with its record; what `Store.scope` returns
book        Book: what all parts of one store's record share
"""
