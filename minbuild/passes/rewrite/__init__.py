"""Rewrites of a Program, one idea per file. `passes/manager.py` lists them in order."""
