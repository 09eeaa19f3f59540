"""Graphs of known operators become a Program: shape inference, constant folding, symbol unification.

`lower` is the entry. Unsupported uses are collected and raised together, so that one run reports them all.
"""
