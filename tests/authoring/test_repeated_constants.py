"""Constants that PyTorch's exporter made of one parameter by repeating it, or by reading rows of a table, train as in
the module; batches and positions are fixed where nothing says otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from authored import stepped
from exported_models import RANDOM, T, W, X, gradients_of, made_of, trained

from minbuild.authoring.folded_constants.repeated_constants import repeated_part
from minbuild.reference.interpreter import ReferenceTrainer

pytestmark = pytest.mark.unit
TABLE = RANDOM.standard_normal((3, 4)).astype(np.float32)
READ = np.array([0, 1, 0, 2, 1])
NODES = [("Add", "x {}", "h", ""), ("MatMul", "h w", "y", "")]


def model(tmp_path, name, constant, sources, of="table"):
    nodes = [(op, inputs.format(name), *rest) for op, inputs, *rest in NODES]
    return made_of(tmp_path, nodes, {name: constant, "w": W}, {name: [of, *sources]}, [of, "w"])


def gradient_of_sum(tmp_path):
    """The gradient of what is added to `x`, [5, 4], in a model whose constant has a number for each sample."""
    made = model(tmp_path, "add_1", TABLE[READ], ["val_1"])
    assert trained(made) == {"add_1", "w"}
    trainer = ReferenceTrainer(made)
    stepped(trainer, X, T)
    return trainer.gradients["add_1"]


def test_rows_of_a_table(tmp_path):
    """Rows that are read more than once are one parameter."""
    whole = gradient_of_sum(tmp_path)
    made = model(tmp_path, "embedding_1", TABLE[READ], ["gather", "val_3", "expand"])
    assert trained(made) == {"table", "w"}
    np.testing.assert_array_equal(ReferenceTrainer(made).parameters["table"], TABLE)
    wanted = np.stack([whole[row == READ].sum(0) for row in range(3)])
    np.testing.assert_allclose(gradients_of(made)["table"], wanted, rtol=1e-12)
    assert made.notes[0].endswith("table: the rows that the model reads, which train as in the module.")


def test_a_token_for_each_sample(tmp_path):
    token = RANDOM.standard_normal((1, 4)).astype(np.float32)
    repeated = np.repeat(token, 5, 0)
    made = model(tmp_path, "expand", repeated, ["val_6", "val_7"], of="token")
    assert trained(made) == {"token", "w"}
    found = gradients_of(made)["token"]
    apart = model(tmp_path, "add_1", repeated, ["val_1"], of="token")
    np.testing.assert_allclose(found, gradients_of(apart)["add_1"].sum(0, keepdims=True), rtol=1e-12)


def test_a_table_that_was_turned():
    """As a bias for each head, of a table with a row for each distance."""
    heads = RANDOM.standard_normal((7, 2)).astype(np.float32)
    index = np.arange(4)[:, None] - np.arange(4) + 3
    constant = heads[index].transpose(2, 0, 1)[None]
    found = repeated_part(
        constant, "unsqueeze", {"permute", "embedding", "abs", "add"}, {"unsqueeze", "permute"}
    )
    assert found is not None and found.is_table and found.parameter.shape == (7, 2)
    (gather, rows), (transpose, order) = found.steps
    assert (gather, transpose) == ("Gather", "Transpose")
    np.testing.assert_array_equal(found.parameter[rows].transpose(order), constant)


def test_all_rows_of_a_table_in_order_are_a_view():
    found = repeated_part(TABLE[None], "embedding", (), ())
    assert found is not None and found.steps == (("Reshape", (1, 3, 4)),)


@pytest.mark.parametrize(
    ("constant", "stem", "between"),
    [
        (np.zeros((2, 4)), "embedding", ()),  # equal, as all that is not trained yet
        (np.concatenate([TABLE, np.ones((2, 4))]), "embedding", ()),  # two rows of ones may be two
        (TABLE[READ], "mul", ("embedding",)),  # numbers of the table times something
        (TABLE, "expand", ()),  # nothing is repeated
        (np.repeat(TABLE[:1], 3, 0), "expand", ("exp",)),  # a function of the numbers
        (np.arange(4.0), "expand", ()),
    ],
)
def test_what_the_names_or_numbers_do_not_show(constant, stem, between):
    assert repeated_part(constant, stem, between, ()) is None
