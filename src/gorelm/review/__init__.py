"""A local page on which a person decides about suspicious rows: ``gorelm review`` (extra review).

`store` keeps the decisions, `similar` finds similar rows, `session` has the table, the fits and
what the page asks for, `server` serves it on 127.0.0.1; ``page.*`` is the page.
"""
