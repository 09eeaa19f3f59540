"""Reference implementations in float64 that built trainers are compared with.

Written for being evidently right, never for speed. Used by `verify/`, `authoring/` and tests; nothing here knows of
kernels or plans.
"""
