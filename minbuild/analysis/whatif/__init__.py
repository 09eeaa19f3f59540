"""Variants of a library, built to measure what options (ablation) and operators (leave-one-out) cost."""
