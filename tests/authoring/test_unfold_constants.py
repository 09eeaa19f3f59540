"""Parameters that PyTorch's exporter folded into constants are parameters again; what is not is named."""

from __future__ import annotations

import numpy as np
import pytest
from authored import stepped
from exported_models import RANDOM, T, W, X, gradients_of, made_of, trained

from minbuild.authoring.folded_constants.weight_norms import NormAxes, norm_axes
from minbuild.reference.interpreter import ReferenceTrainer

NORM = {"div", "linalg_vector_norm"}
MOVED = NORM | {"clone", "transpose", "view"}
SLOPES = {  # of functions by name: the derivative, given argument and result
    "exp": (np.exp, lambda t, c: c),
    "neg": (np.negative, lambda t, c: -1),
    "sigmoid": (lambda t: 1 / (1 + np.exp(-t)), lambda t, c: c * (1 - c)),
    "softplus": (lambda t: np.log1p(np.exp(t)), lambda t, c: 1 / (1 + np.exp(-t))),
    "tanh": (np.tanh, lambda t, c: 1 - c * c),
    "sqrt": (lambda t: np.sqrt(np.abs(t)), lambda t, c: 0.5 / c),
    "reciprocal": (np.reciprocal, lambda t, c: -c * c),
    "atan": (np.arctan, lambda t, c: 1 / (1 + t * t)),
    "log": (lambda t: np.log(np.abs(t)), lambda t, c: np.exp(-c)),
}


@pytest.mark.parametrize("function", SLOPES)
def test_a_function_of_a_parameter(function, tmp_path):
    compute, slope = SLOPES[function]
    t = RANDOM.standard_normal(4)
    c = compute(t)
    made = made_of(
        tmp_path,
        [("Mul", f"x {function}_3", "y", "")],
        {f"{function}_3": c},
        {f"{function}_3": ["t"]},
        ["t"],
    )
    assert trained(made) == {"t"}
    assert made.notes[0].startswith("t: folded into constants by the exporter")
    wanted = (X * 2 * (X * c - T) / T.size).sum(0) * slope(t, c)
    np.testing.assert_allclose(gradients_of(made)["t"], wanted, rtol=1e-5, atol=1e-7)


WITH_NUMBERS = {  # by the name that the exporter gives them: the function, and its derivative
    "sub": (lambda t: 1 - t, lambda t: -1),
    "rsub_1": (lambda t: 0.75 - t, lambda t: -1),
    "sub_3": (lambda t: t - 1, lambda t: 1),
    "add_5": (lambda t: t + 0.5, lambda t: 1),
    "mul_2": (lambda t: 2 * t, lambda t: 2),
    "div": (lambda t: t / 3, lambda t: 1 / 3),
    "div_1": (lambda t: 3 / t, lambda t: -3 / t**2),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_a_parameter_with_a_number_beside_the_parameter_itself(name, tmp_path):
    """As in mix * x + (1 - mix) * y: both parts of the gradient are the parameter's."""
    compute, slope = WITH_NUMBERS[name]
    t = RANDOM.uniform(0.2, 0.9, 4).astype(np.float32)
    c = compute(t)
    nodes = [
        ("Mul", "x t", "h", ""),
        ("Tanh", "x", "i", ""),
        ("Mul", f"i {name}", "j", ""),
        ("Add", "h j", "y", ""),
    ]
    folded = {name: ["scalar_tensor_default_1", "t", "val_7"]}
    made = made_of(tmp_path, nodes, {"t": t, name: c}, folded, ["t"])
    assert trained(made) == {"t"}
    e = 2 * (X * t + np.tanh(X) * c - T) / T.size
    wanted = (e * (X + np.tanh(X) * slope(t))).sum(0)
    np.testing.assert_allclose(gradients_of(made)["t"], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("t", [np.full(4, 0.25), RANDOM.uniform(0.2, 0.9, 4)], ids=["equal", "other"])
def test_a_number_that_is_not_told_is_named(t, tmp_path):
    """Of equal elements 1 - t may be t + 0.5, and others are of no number at all."""
    nodes = [("Mul", "x t", "h", ""), ("Mul", "h sub", "y", "")]
    folded = {"sub": ["scalar_tensor_default", "t", "val_7"]}
    made = made_of(tmp_path, nodes, {"t": t, "sub": 1 - t if np.ptp(t) == 0 else t**2}, folded, ["t"])
    assert trained(made) == {"sub", "t"}
    assert "'sub' was computed of t by the exporter, and trains in place of it" in made.notes[0]


def test_functions_of_each_other_and_layouts(tmp_path):
    s = RANDOM.standard_normal(4)
    c = np.exp(-s)[None]
    folded = {"unsqueeze": ["exp", "neg", "s", "val_3"]}  # exp(neg) or neg(exp): not told
    made = made_of(tmp_path, [("Mul", "x unsqueeze", "y", "")], {"unsqueeze": c}, folded, ["s"])
    assert trained(made) == {"unsqueeze"}
    assert "'unsqueeze' was computed of s by the exporter, and trains in place of it" in made.notes[0]
    folded = {"exp": ["neg", "s", "unsqueeze", "val_3"]}
    made = made_of(tmp_path, [("Mul", "x exp", "y", "")], {"exp": c}, folded, ["s"])
    assert trained(made) == {"s"}
    wanted = (X * 2 * (X * c - T) / T.size).sum(0) * -c
    np.testing.assert_allclose(gradients_of(made)["s"], wanted, rtol=1e-5, atol=1e-7)


def test_a_single_number_trains(tmp_path):
    made = made_of(tmp_path, [("Mul", "x exp", "y", "")], {"exp": 1.5}, {"exp": ["t"]}, ["t"])
    assert [(p.name, p.shape) for p in made.checkpoint.parameters] == [("t", ())]
    wanted = (X * 2 * (X * 1.5 - T) / T.size).sum() * 1.5
    assert gradients_of(made)["t"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("clamp", ["l", "exp", "val_1"]),
        ("pow_1", ["l", "val_0"]),
        ("exp", ["l", "val_0"]),
        ("index", ["l", "val_2"]),
    ],
)
def test_what_cannot_be_rebuilt_is_named(name, sources, tmp_path):
    nodes = [("Mul", f"x {name}", "h", ""), ("MatMul", "h w", "y", "")]
    made = made_of(tmp_path, nodes, {name: 1.5, "w": W}, {name: sources}, ["l", "w"])
    assert trained(made) == {"w"}
    assert f"'{name}' was computed of l by the exporter, and does not train" in made.notes[0]
    assert "optimize=False" in made.notes[0]
    made = made_of(tmp_path, nodes, {name: 1.5, "w": W}, {name: sources}, ["l", "w"], train=(name,))
    assert trained(made) == {name}


def test_a_value_that_the_function_does_not_have(tmp_path):
    """A negative exp: the name does not say what was computed."""
    made = made_of(tmp_path, [("Mul", "x exp", "y", "")], {"exp": -np.ones(4)}, {"exp": ["t"]}, ["t"])
    assert trained(made) == {"exp"}
    assert "trains in place of it" in made.notes[0]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dim", [0, None, "last", "last negative"])
def test_weight_normalisation(turned, dim, tmp_path):
    """Lengths along `dim`; along the last one only where the file has them, with signs."""
    g, v = "fc.parametrizations.weight.original0", "fc.parametrizations.weight.original1"
    sources = [g, v, "div", "linalg_vector_norm", "val_0", "val_1", *["val_2"] * (dim is not None)] + [
        "mul"
    ] * turned
    name = "val_7" if turned else "mul"
    weight = (W.T if turned else W).astype(np.float64)  # [in, out] in a Gemm that does not turn it
    axes = {0: 1, None: (0, 1)}.get(dim, 0)
    lengths = np.sqrt((weight**2).sum(axes, keepdims=True))
    sign = np.where(np.arange(4) == 2, -1, 1) if dim == "last negative" else 1
    nodes = [("MatMul" if turned else "Gemm", f"x {name}", "h", "fc"), ("Add", "h zero", "y", "")]
    arrays = {name: W, "zero": np.zeros(4)}
    if isinstance(dim, str):  # the file holds them, as something else reads them as well
        arrays["h.weight"] = np.ones((4, 4))
        arrays[g] = lengths * sign
        nodes[1:] = [("Mul", f"{g} zero", "none", ""), ("Add", "h none", "y", "")]
    made = made_of(tmp_path, nodes, arrays, {name: sources, "zero": []}, [g, v])
    assert {g, v} <= trained(made)
    told = "" if isinstance(dim, str) else f"{v} (dim={dim}{', which' if dim == 0 else '):'}"
    assert told in made.notes[0] and ("directions of" in made.notes[0]) == bool(told)
    d = X.T @ (2 * (X @ W - T) / T.size)
    d = d.T if turned else d
    along = (d * weight).sum(axes, keepdims=True) / lengths
    gradients = gradients_of(made)
    np.testing.assert_allclose(gradients[g].reshape(along.shape), along * sign, rtol=1e-5)
    np.testing.assert_allclose(gradients[v], (d - along * weight / lengths) * sign, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "rank, stems, numbers, length, found",
    [
        (2, NORM, 3, None, ((1,), 0, True)),
        (4, NORM, 2, None, ((0, 1, 2, 3), None, False)),
        (3, MOVED, 11, None, ((0, 2), 1, False)),
        (4, MOVED, 12, None, ((0, 2, 3), 1, True)),
        (4, NORM, 3, (1, 1, 1, 5), ((0, 1, 2), 3, False)),
        (3, NORM, 3, (), ((0, 1, 2), None, False)),
        (3, NORM, 3, (2, 1, 3), None),
        (2, MOVED, 12, None, None),
        (3, NORM | {"exp"}, 3, None, None),
    ],
)
def test_axes_of_norms(rank, stems, numbers, length, found):
    """By the functions that torch's exporter names for `dim` 0, none, and those between the first and the last."""
    given = None if length is None else np.ones(length)
    axes = norm_axes(rank, stems, numbers, given)
    assert axes == (found and NormAxes(*found))


def test_equal_parameters_of_several_layers_come_apart(tmp_path):
    nodes = [
        ("LayerNormalization", "x n1.weight n1.bias", "h", "n1"),
        ("Gemm", "h a.weight n1.bias", "i", "a"),
        ("LayerNormalization", "i n1.weight n1.bias", "j", "n2"),
        ("Gemm", "j b.weight", "k", "b"),  # without its bias of zeros
        ("Mul", "k n1.weight", "y", ""),
    ]
    arrays = {"n1.weight": np.ones(4), "n1.bias": np.zeros(4), "a.weight": W, "b.weight": W[::-1]}
    names = [
        "n1.weight",
        "n1.bias",
        "n2.weight",
        "n2.bias",
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
        "scale",
    ]
    made = made_of(tmp_path, nodes, arrays, None, names)
    assert trained(made) == set(names)
    again, _, _ = made.notes[0].partition(":")
    assert set(again.split(", ")) == {"n2.weight", "n2.bias", "a.bias", "scale", "b.bias"}
    gradients = gradients_of(made)
    assert len({float(np.abs(g).sum()) for g in gradients.values()}) == len(names)  # none is another's


def test_parameters_that_a_module_shares_stay_one(tmp_path):
    nodes = [("MatMul", "x a.weight", "h", "a"), ("MatMul", "h a.weight", "y", "b")]
    made = made_of(tmp_path, nodes, {"a.weight": W}, None, ["a.weight", "b.weight"])
    assert trained(made) == {"a.weight"}
    assert made.notes[0].startswith("b.weight: parameters of the module that the file does not hold")


def test_a_shared_weight_that_was_transposed_is_shared_again(tmp_path):
    nodes = [("Gemm", "x a.weight", "h", "a"), ("MatMul", "h val_0", "y", "")]
    made = made_of(tmp_path, nodes, {"a.weight": W, "val_0": W.T}, {"val_0": ["a.weight"]}, ["a.weight"])
    assert trained(made) == {"a.weight"}
    trainer = ReferenceTrainer(made)
    stepped(trainer, X, T)
    e = 2 * (X @ W @ W.T - T) / T.size
    wanted = X.T @ e @ W + (e.T @ X @ W)
    np.testing.assert_allclose(trainer.gradients["a.weight"], wanted, rtol=1e-5)


def test_the_weight_of_a_linear_layer_keeps_its_name_and_shape(tmp_path):
    wide = RANDOM.standard_normal((4, 4)).astype(np.float32)
    nodes = [("MatMul", "x val_0", "y", "fc")]
    made = made_of(tmp_path, nodes, {"val_0": wide}, {"val_0": ["fc.weight"]}, ["fc.weight", "fc.bias"])
    data = {p.name: p.data for p in made.checkpoint.parameters}
    np.testing.assert_array_equal(data["fc.weight"], wide.T)
    np.testing.assert_array_equal(data["fc.bias"], np.zeros(4))


def test_normalisation_with_the_statistics_of_its_parameters(tmp_path):
    """Scale and variance begin equal, and the exporter makes one tensor of them: it would never train."""
    nodes = [("BatchNormalization", "x bn.weight bn.bias bn.bias bn.weight", "y", "bn")]
    made = made_of(
        tmp_path,
        nodes,
        {"bn.weight": np.ones(4), "bn.bias": np.zeros(4)},
        None,
        ["bn.weight", "bn.bias"],
        ["bn.running_mean", "bn.running_var"],
    )
    assert trained(made) == {"bn.weight", "bn.bias"}
    assert {p.name for p in made.checkpoint.parameters} - trained(made) == {
        "bn.running_mean",
        "bn.running_var",
    }


def test_normalisation_merged_into_a_layer_is_named(tmp_path):
    parameters, buffers = ["c.weight", "bn.weight", "bn.bias"], ["bn.running_mean", "bn.running_var"]
    made = made_of(tmp_path, [("MatMul", "x c.weight", "y", "c")], {"c.weight": W}, None, parameters, buffers)
    assert (
        "bn.bias, bn.weight: the exporter merged this normalisation into the layer before it" in made.notes[0]
    )
