"""Passes over a Program. `manager` applies them in order; `lowering/` builds the Program, `rewrite/` improves it.

A pass is a pure function over frozen data. `contracts` holds what passes require and ensure, which tests check after
each; docs/adding-a-pass.md leads through a new one.
"""
