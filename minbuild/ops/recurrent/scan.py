"""Scan that stays a loop: one call until its body takes its place, so nothing of it reaches the device."""

from __future__ import annotations

from minbuild.ops.core.definition import Op

OUTPUTS = 64

scan = Op(
    "Scan", domain="minbuild", accumulates=frozenset(range(OUTPUTS)), differentiable=frozenset(range(OUTPUTS))
)

OPS = (scan,)
