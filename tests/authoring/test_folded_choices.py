"""Parameters that are chosen by name, and that PyTorch's exporter folded into constants, are named with a cure."""

from __future__ import annotations

import numpy as np
import pytest
from exported_models import W, made_of, trained

from minbuild.errors import BadInput

pytestmark = pytest.mark.unit
NODES = [("Mul", "x view", "h", ""), ("MatMul", "h w", "y", "")]
CONSTANT = {"view": np.linspace(1, 2, 4), "w": W}
FOLDED = {"view": ["lora_m", "lora_w", "div"]}  # of a norm and a magnitude, as in DoRA


def made(tmp_path, *train, lora="w"):
    names = {"w": lora}
    arrays = {names.get(n, n): a for n, a in CONSTANT.items()}
    nodes = [(op, inputs.replace(" w", f" {lora}"), *rest) for op, inputs, *rest in NODES]
    return made_of(tmp_path, nodes, arrays, FOLDED, ["lora_m", lora], train=train)


@pytest.mark.parametrize("pattern", ["lora_m", "*_m"])
def test_one_that_is_chosen_alone_is_refused(pattern, tmp_path):
    wanted = r"--train .*: .*: the exporter computed view of lora_m, .* Export with optimize=False"
    with pytest.raises(BadInput, match=wanted) as caught:
        made(tmp_path, pattern)
    assert "no parameter" not in str(caught.value)


def test_one_among_others_is_noted(tmp_path):
    result = made(tmp_path, "lora_*", lora="lora_a")
    assert trained(result) == {"lora_a"}
    assert any("the exporter computed view of lora_m, which do not train then" in n for n in result.notes)


def test_the_constant_may_be_chosen_instead(tmp_path):
    assert trained(made(tmp_path, "view")) == {"view"}


def test_magnitudes_of_low_rank_adapters(tmp_path):
    """As `peft` names those of DoRA."""
    name = "lora_magnitude_vector.default.weight"
    nodes = [("Mul", f"x {name}", "h", ""), ("MatMul", "h w", "y", "")]
    result = made_of(tmp_path, nodes, {name: np.linspace(1, 2, 4), "w": W}, {}, [name, "w"], train=(name,))
    assert any(note.startswith(f"{name}: magnitudes of DoRA") for note in result.notes)
