"""Passes over a Program. `manager` applies them in order; `lowering/` builds the Program, `rewrite/` improves it.

A pass is a pure function over frozen data.
"""
