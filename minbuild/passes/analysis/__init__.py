"""Analyses that rewrites query: which value owns whose storage, effects, lifespans, sample loops.

They change nothing. `effects.Effects` is the only place that knows what a call reads and writes; a rewrite that needs
such a fact takes it from here instead of repeating it.
"""
