"""Gradients of ScatterElements and ScatterND with `max` and `min`: updates that tie share a gradient. Each had all of
it, so that two edges between the same nodes of a graph counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from authored import differences, source, trainer_of

from minbuild.authoring import Recipe

pytestmark = pytest.mark.unit
W = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
FORMS = {
    "ScatterElements": "e = Constant<value_ints = [4, 2]>() p = Expand(i, e) "
    'y = ScatterElements<reduction = "{}">(b, p, u)',
    "ScatterND": 'y = ScatterND<reduction = "{}">(b, i, u)',
}


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("form", FORMS)
def test_tied_updates_share_the_gradient(form: str, reduction: str) -> None:
    """Rows 0 and 1 of the updates are one row of `w`, both for row 2; `b` itself ties with the update of row 1."""
    text = f"""g (int64[4] rows, int64[4, 1] i) => (float[3, 2] y) {{
        u = Gather(w, rows)  b = Identity(w)  {FORMS[form].format(reduction)} }}"""
    trainer = trainer_of(source(text, {"w": W}, opset=18), Recipe(loss="mse"))
    target = np.random.default_rng(1).standard_normal((3, 2))
    rows, i = np.array([0, 0, 1, 2]), np.array([[2], [2], [1], [0]])
    assert max(differences(trainer, rows, i, target).values()) < 1e-6
