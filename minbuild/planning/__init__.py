"""Program to Plan: kernel selection, steps, buffers, the plan's encoding, and what a library must contain.

`compile` runs everything before a compiler starts; `arena/` lays out memory. The encoding follows `schemas/`; a change
of it raises the plan's version and concerns `kernels/runtime/plan.cc` as well.
"""
