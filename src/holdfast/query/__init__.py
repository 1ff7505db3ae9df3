"""Questions over everything that a store has recorded: one closed form, a plain scan, an index."""
