"""Every record as a JSON document, for the command line and whatever else shows a store. Pure.

A function takes records and returns a document; nothing here reads a store or prints.
`docs/cli.md` describes each document.

text        values, times, paths and stored text, safe to show
history     events, changes, checkpoints, states
record      messages, tasks, decisions, facts
runs        runs, and their journals as trees
store       a store as a whole: status, scopes, workers, reports, errors
"""
