"""The arena planner: lifespans of buffers, placement heuristics, local search, and an independent validator.

`layout` is the entry. A heuristic may be added freely, because the smallest valid layout wins; `validator` shares no
code with the others and must stay so.
"""
