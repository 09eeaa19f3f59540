"""Symbolic data: tensors whose elements are expressions over free dimensions."""

from __future__ import annotations

import numpy as np

from minbuild.ir.dims import never_negative

MOST_AXES = 8  # axes of a tensor, of which a call writes the sizes


def is_symbolic_data(content: np.ndarray | None) -> bool:
    """True if `content` holds free dimensions that can be the sizes of one tensor."""
    return (
        content is not None
        and content.dtype == object
        and content.size <= MOST_AXES
        and all(never_negative(d) for d in content.ravel().tolist())
    )
