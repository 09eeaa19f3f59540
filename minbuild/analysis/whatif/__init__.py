"""Variants of a library, built to measure what options (ablation) and operators (leave-one-out) cost.

`runner` builds a variant; the other modules choose variants and compare sizes. A new build option needs no edit here:
the size waterfall follows the table in `options/build_options`.
"""
