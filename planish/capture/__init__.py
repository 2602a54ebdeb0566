"""Programs that people wrote, read into the graph IR: one front end per module, each a table foreign op ->
our ops.

Nothing is imported here, so that one front end does not load what only another needs.
"""
