"""Takes what verifies from a source into a target: copies, backups, archives, exports, salvage.

A source (`source`) yields whole commits in order. What the target has is compared with it before
anything is written (`compare`), and a sink (`sink`) writes what the target lacks.
"""
