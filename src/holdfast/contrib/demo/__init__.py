"""The demo: a support team whose agents share state, crash, conflict and rewind.

scenes     what happens, scene by scene, and what is claimed about it
story      what was said and claimed so far
agent      one agent, and the run that it executes; `python -m` runs it, so it is not imported here
"""
