"""Passes over a Program. `manager` applies them in order; `lowering/` builds the Program, `rewrite/` improves it.

A pass is a pure function over frozen data. `contracts` and `invariants` hold what passes require, ensure and preserve,
which tests check around each; docs/adding-a-pass.md leads through a new one.
"""
