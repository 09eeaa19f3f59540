"""TreeEnsemble: all splits of all trees are decided at once, and a product of matrices finds the leaf of each tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results, Value

_COMPARISONS = ("LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Equal", "Equal")  # by number of the mode
_UNEQUAL, _MEMBER = 5, 6
_AVERAGE, _SUM = 0, 1
_Path = tuple[tuple[int, bool], ...]  # splits from the root, and which way
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


def _paths(attributes: Mapping[str, Any]) -> Iterator[tuple[_Path, int]]:
    """The way to each leaf, and its number. Raises UnsupportedUse for nodes that are no trees."""
    ends = {
        way: (attributes[f"nodes_{way}nodeids"], attributes[f"nodes_{way}leafs"]) for way in ("true", "false")
    }
    count, leaves = len(attributes["nodes_featureids"]), len(attributes["leaf_targetids"])
    waiting: list[tuple[int, _Path]] = [(int(root), ()) for root in reversed(attributes["tree_roots"])]
    while waiting:
        node, path = waiting.pop()
        if not 0 <= node < count or len(path) > count:
            raise UnsupportedUse("its nodes are no trees: a child is out of range, or its own ancestor")
        for way in ("false", "true"):
            children, is_leaf = ends[way]
            child, further = int(children[node]), (*path, (node, way == "true"))
            if not is_leaf[node]:
                waiting.append((child, further))
            elif 0 <= child < leaves:
                yield further, child
            else:
                raise UnsupportedUse(f"leaf {child} of {leaves}")


def _members(attributes: Mapping[str, Any], modes: np.ndarray) -> list[np.ndarray]:
    """The set of each node whose mode asks for membership, in order: sets end with NaN."""
    values = np.asarray(attributes.get("membership_values", ())).reshape(-1)
    sets: list[list[float]] = [[]]
    for value in values.tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    wanted = int((modes == _MEMBER).sum())
    if len(sets) < wanted:
        raise UnsupportedUse(f"{wanted} nodes ask for membership, and there are {len(sets)} sets")
    return [np.array(each, values.dtype) for each in sets[:wanted]]


def _modes(attributes: Mapping[str, Any]) -> np.ndarray:
    modes = np.asarray(attributes["nodes_modes"]).reshape(-1)
    if modes.max(initial=0) > _MEMBER:
        raise UnsupportedUse(f"mode {modes.max()} of a node")
    if int(attributes.get("post_transform", 0)) != 0:
        raise UnsupportedUse("a post_transform. Leave it out, and add the operator behind it")
    if int(attributes.get("aggregate_function", _SUM)) not in (_AVERAGE, _SUM):
        raise UnsupportedUse("trees that are aggregated by minimum or maximum; sum and average are supported")
    return modes


def _missing(attributes: Mapping[str, Any]) -> np.ndarray:
    """Per split whether a feature that is NaN goes the way of true, whatever its comparison says."""
    tracks = np.asarray(attributes.get("nodes_missing_value_tracks_true", ()), bool).reshape(-1)
    return tracks if tracks.size else np.zeros(len(attributes["nodes_featureids"]), bool)


def _tables(attributes: Mapping[str, Any], dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per split and leaf +1 or -1 where its path asks for true or false [S,L]; splits asked for false, and the sum that
    a path taken has [L]; what the leaf adds to each target [L,T]."""
    paths = list(_paths(attributes))
    asked = np.zeros((len(attributes["nodes_featureids"]), len(paths)), dtype)
    weights = np.zeros((len(paths), int(attributes.get("n_targets", 1))), dtype)
    leaf_weights = np.asarray(attributes["leaf_weights"]).reshape(-1)
    for i, (path, leaf) in enumerate(paths):
        for node, way in path:
            asked[node, i] = 1 if way else -1
        weights[i, int(attributes["leaf_targetids"][leaf])] = leaf_weights[leaf]
    if int(attributes.get("aggregate_function", _SUM)) == _AVERAGE:
        weights /= len(attributes["tree_roots"])
    return asked, (asked > 0).sum(0).astype(dtype), weights


def _body(b: GraphBuilder) -> Results:
    attributes, element = b.ctx.attributes, b.ctx.element()
    modes, splits = _modes(attributes), np.asarray(attributes["nodes_splits"]).reshape(-1)
    x = b.add("Gather", b.x[0], b.integers(attributes["nodes_featureids"]), axis=1)  # [N,S]
    decided: Value | None = None
    for mode in sorted(set(modes.tolist())):
        holds = (
            _member(b, x, modes)
            if mode == _MEMBER
            else b.add(_COMPARISONS[mode], x, b.constant(splits, element))
        )
        holds = ~holds if mode == _UNEQUAL else holds
        part = holds.cast(element) * b.constant((modes == mode).astype(element.dtype), element)
        decided = part if decided is None else decided + part
    assert decided is not None
    missing = _missing(attributes)
    if missing.any():
        go_true = b.add("IsNaN", x).cast(element) * b.constant(missing.astype(element.dtype), element)
        decided = b.add("Max", decided, go_true)
    asked, wanted, weights = _tables(attributes, element.dtype)
    # A path is taken where every split goes its way: the sum is the number asked to be true, and never more.
    taken = (decided @ b.constant(asked, element)).equal(b.constant(wanted, element))
    return taken.cast(element) @ b.constant(weights, element)


def _member(b: GraphBuilder, x: Value, modes: np.ndarray) -> Value:
    """Per split whether the feature is in its set; sets are padded with NaN, which equals nothing."""
    element, sets = b.ctx.element(), _members(b.ctx.attributes, modes)
    table = np.full((len(modes), max(map(len, sets))), np.nan, element.dtype)
    for node, each in zip(np.flatnonzero(modes == _MEMBER), sets, strict=True):
        table[node, : len(each)] = each
    same = x.unsqueeze((2,)).equal(b.constant(table, element))
    return same.cast(element).max((2,), keepdims=False) > 0.5


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    modes, splits = _modes(attributes), np.asarray(attributes["nodes_splits"]).reshape(-1)
    sets, missing = iter(_members(attributes, modes)), _missing(attributes)
    kept = {int(i): next(sets) for i in np.flatnonzero(modes == _MEMBER)}
    y = np.zeros((len(x), int(attributes.get("n_targets", 1))), x.dtype)
    weights = np.asarray(attributes["leaf_weights"]).reshape(-1)
    for row in range(len(x)):
        for root in attributes["tree_roots"]:
            node, leaf = int(root), False
            while not leaf:
                value = x[row, attributes["nodes_featureids"][node]]
                holds = value in kept[node] if node in kept else _COMPARE[modes[node]](value, splits[node])
                holds = holds or (missing[node] and np.isnan(value))
                way = "true" if holds else "false"
                leaf = bool(attributes[f"nodes_{way}leafs"][node])
                node = int(attributes[f"nodes_{way}nodeids"][node])
            y[row, attributes["leaf_targetids"][node]] += weights[node]
    average = int(attributes.get("aggregate_function", _SUM)) == _AVERAGE
    return y / len(attributes["tree_roots"]) if average else y


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    """Two trees of three splits each."""
    trees: dict[str, Any] = {
        "nodes_featureids": (0, 1, 2, 2, 0, 1),
        "nodes_splits": np.array([0.1, -0.2, 0.3, 0.0, -0.4, 0.5], np.float32),
        "nodes_truenodeids": (1, 0, 2, 4, 4, 6),
        "nodes_trueleafs": (0, 1, 1, 0, 1, 1),
        "nodes_falsenodeids": (2, 1, 3, 5, 5, 7),
        "nodes_falseleafs": (0, 1, 1, 0, 1, 1),
        "leaf_targetids": (0, 1, 0, 1, 1, 0, 1, 0),
        "leaf_weights": np.linspace(-1, 1, 8, dtype=np.float32),
        "tree_roots": (0, 3),
        "n_targets": 2,
    }
    x = random.standard_normal((5, 3))
    for modes in ((0, 1, 2, 3, 0, 0), (0, 0, 0, 4, 5, 3)):
        for aggregate in (_AVERAGE, _SUM):
            given = {**trees, "nodes_modes": np.array(modes, np.uint8), "aggregate_function": aggregate}
            yield TestCase(f"modes {modes} {aggregate}", (x,), given, smooth=False)
    holes = np.where(random.random((6, 3)) < 0.4, np.nan, random.standard_normal((6, 3)))
    given = {**trees, "nodes_modes": np.array((0, 1, 2, 5, 4, 0), np.uint8)}
    for name, tracks in (("some", (1, 0, 1, 0, 1, 0)), ("other", (0, 1, 0, 1, 0, 1))):
        given["nodes_missing_value_tracks_true"] = tracks
        yield TestCase(f"missing values, {name}", (holes,), dict(given), smooth=False)
    whole = random.integers(0, 4, (6, 3)).astype(np.float64)
    given = {**trees, "nodes_modes": np.array((6, 0, 0, 6, 0, 0), np.uint8)}
    given["membership_values"] = np.array([1, 3, np.nan, 0, 2, np.nan], np.float32)
    yield TestCase("members", (whole,), given, smooth=False)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), (ctx.shape()[0], int(ctx.attribute("n_targets", 1)))),)


tree_ensemble = Op(
    "TreeEnsemble",
    domain="ai.onnx.ml",
    since=(5,),
    infer=_infer,
    reference=_reference,
    decompose=_body,
    decomposes_to=(
        "Add",
        "Cast",
        "Equal",
        "Gather",
        "Greater",
        "GreaterOrEqual",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "MatMul",
        "Max",
        "Mul",
        "Not",
        "ReduceMax",
    ),
    differentiable=frozenset(),
    cases=_cases,
)

OPS = (tree_ensemble,)
