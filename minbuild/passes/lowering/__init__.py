"""Graphs of known operators become a Program: shape inference, constant folding, symbol unification."""
