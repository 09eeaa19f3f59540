"""Rewrites of a Program, one idea per file. `passes/manager.py` lists them in order.

A rewrite keeps every number bit for bit. A new one is a file here, an entry in the manager with its contract,
and a test in `tests/passes/`.
"""
