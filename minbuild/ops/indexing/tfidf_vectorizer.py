"""TfIdfVectorizer: how often each n-gram of a list occurs, of whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import FLOAT, Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results, Value

_Grams = list[tuple[int, np.ndarray, np.ndarray]]  # length, n-grams [G, length], columns of the result [G]


def _grams(attributes: Mapping[str, Any]) -> tuple[_Grams, int]:
    """The n-grams that count, by length, and the number of columns."""
    if not attributes.get("pool_int64s"):
        raise UnsupportedUse("n-grams of strings. Turn texts into numbers before the model")
    pool, starts = np.asarray(attributes["pool_int64s"]), [*attributes["ngram_counts"]]
    columns = np.asarray(attributes["ngram_indexes"])
    if starts != sorted(starts) or columns.size == 0 or columns.min() < 0:
        raise UnsupportedUse(
            "its n-grams are not in order of their lengths, or columns of the result are negative"
        )
    grams, first = [], 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], pool.size], strict=True), 1):
        table = pool[start:end].reshape(-1, length)
        places = columns[first : first + len(table)]
        first += len(table)
        if int(attributes["min_gram_length"]) <= length <= int(attributes["max_gram_length"]) and len(table):
            grams.append((length, table, places))
    return grams, int(columns.max()) + 1


def _windows(attributes: Mapping[str, Any], length: int, size: int) -> Iterator[tuple[int, int]]:
    """Distances between the elements of an n-gram, and how many places it may begin at."""
    skips = int(attributes["max_skip_count"]) if length > 1 else 0
    for distance in range(1, skips + 2):
        count = size - (length - 1) * distance
        if count > 0:
            yield distance, count


def _weighted(attributes: Mapping[str, Any], columns: int) -> tuple[str, np.ndarray | None]:
    mode, weights = str(attributes["mode"]), attributes.get("weights")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise UnsupportedUse(f"mode '{mode}'; there are TF, IDF and TFIDF")
    if weights is not None and len(weights) != columns:
        raise UnsupportedUse(f"{len(weights)} weights for {columns} columns")
    return mode, None if weights is None or mode == "TF" else np.asarray(weights, np.float32)


def _body(b: GraphBuilder) -> Results:
    """Every n-gram of one length is compared with every window at once: [..., places, n-grams]."""
    rank, size = b.ctx.rank(), b.ctx.shape()[-1]
    if not isinstance(size, int):
        raise UnsupportedUse(f"its row length {size} must be known when the trainer is built")
    (grams, columns), element = _grams(b.ctx.attributes), b.ctx.element()
    mode, weights = _weighted(b.ctx.attributes, columns)
    found: list[Value] = []
    order: list[int] = []
    for length, table, places in grams:
        total = None
        for distance, count in _windows(b.ctx.attributes, length, size):
            same = None
            for k in range(length):
                begin = k * distance
                ends = (b.integers([begin]), b.integers([begin + count]), b.integers([rank - 1]))
                part = b.add("Slice", b.x[0], *ends).unsqueeze((rank,))
                equal = part.equal(b.constant(table[:, k], element))
                same = equal if same is None else same & equal
            assert same is not None
            counts = same.cast(FLOAT).sum((rank - 1,), keepdims=False)
            total = counts if total is None else total + counts
        if total is not None:
            found.append(total)
            order += places.tolist()
    if not found:
        raise UnsupportedUse("no n-gram fits into its rows")
    rows = b.add("Concat", *found, axis=-1) if len(found) > 1 else found[0]
    spread = np.zeros((len(order), columns), np.float32)
    spread[np.arange(len(order)), order] = 1
    y = rows @ b.constant(spread, FLOAT)
    if mode == "IDF":
        y = (y > 0.0).cast(FLOAT)
    return y if weights is None else y * b.constant(weights, FLOAT)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    grams, columns = _grams(attributes)
    mode, weights = _weighted(attributes, columns)
    y = np.zeros((*x.shape[:-1], columns), np.float32)
    for row in np.ndindex(*x.shape[:-1]):
        for length, table, places in grams:
            for distance, count in _windows(attributes, length, x.shape[-1]):
                for begin in range(count):
                    window = x[row][begin : begin + (length - 1) * distance + 1 : distance]
                    for gram, place in zip(table, places, strict=True):
                        y[(*row, place)] += np.array_equal(window, gram)
    y = (y > 0).astype(np.float32) if mode == "IDF" else y
    return y if weights is None else y * weights


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    pool: dict[str, Any] = {"pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 3, 2), "ngram_counts": (0, 4)}
    pool |= {"ngram_indexes": (0, 1, 2, 3, 4, 5, 6, 8), "min_gram_length": 1, "max_gram_length": 2}
    weights = tuple(np.linspace(-1, 1, 9).tolist())
    for shape in ((12,), (2, 7)):
        x = random.integers(2, 8, shape)
        for skips in (0, 5):
            yield TestCase(
                f"{list(shape)} TF {skips}", (x,), {**pool, "mode": "TF", "max_skip_count": skips}, ulps=0
            )
        for mode in ("IDF", "TFIDF"):
            given = {**pool, "mode": mode, "max_skip_count": 1, "weights": weights}
            yield TestCase(f"{list(shape)} {mode}", (x.astype(np.int32),), given, ulps=1)


tfidf_vectorizer = Op(
    "TfIdfVectorizer",
    since=(9,),
    reference=_reference,
    decompose=_body,
    decomposes_to=(
        "And",
        "Cast",
        "Concat",
        "Equal",
        "Greater",
        "MatMul",
        "Mul",
        "Add",
        "ReduceSum",
        "Slice",
        "Unsqueeze",
    ),
    differentiable=frozenset(),
    cases=_cases,
)

OPS = (tfidf_vectorizer,)
