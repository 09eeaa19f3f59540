"""Program to Plan: kernel selection, steps, buffers, the plan's encoding, and what a library must contain.

`compile` runs everything before a compiler starts; `arena/` lays out memory.
"""
