"""Dimensions as exact expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minbuild.ir.dims import (
    Dim,
    ceil_div,
    dim_max,
    dim_min,
    divide_exactly,
    evaluate,
    product,
    round_up,
    substitute,
    symbol,
    symbols_in,
)

pytestmark = pytest.mark.unit

B, S = symbol("batch"), symbol("seq")
SIZES = {"batch": 3, "seq": 7}

dims = st.recursive(
    st.one_of(st.integers(-5, 9), st.sampled_from([B, S])),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
    ),
    max_leaves=6,
)


def test_equal_expressions_are_equal() -> None:
    assert B * 2 + B == 3 * B
    assert (B + S) * (B - S) == B * B - S * S
    assert B - B == 0
    assert isinstance(B - B, int)
    assert (B * S) // S == B
    assert product([2, B, 3]) == 6 * B


@given(dims, dims)
def test_arithmetic_agrees_with_numbers(a: Dim, b: Dim) -> None:
    x, y = evaluate(a, SIZES), evaluate(b, SIZES)
    assert evaluate(a + b, SIZES) == x + y
    assert evaluate(a - b, SIZES) == x - y
    assert evaluate(a * b, SIZES) == x * y
    assert evaluate(dim_max(a, b), SIZES) == max(x, y)
    assert evaluate(dim_min(a, b), SIZES) == min(x, y)


@given(dims, st.integers(1, 9))
def test_quotients_agree_with_numbers(a: Dim, n: int) -> None:
    assert evaluate(a // n, SIZES) == evaluate(a, SIZES) // n
    assert evaluate(ceil_div(a, n), SIZES) == -(-evaluate(a, SIZES) // n)
    assert evaluate(round_up(a, n), SIZES) == -(-evaluate(a, SIZES) // n) * n
    assert round_up(n * a, n) == n * a


@given(dims)
def test_substitution_is_evaluation(a: Dim) -> None:
    assert substitute(a, SIZES) == evaluate(a, SIZES)
    assert symbols_in(substitute(a, {"batch": 3})) <= {"seq"}


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [(6 * B, 3, 2 * B), (6 * B, 4, None), (B * S, S, B), (B + 1, B, None), (B, 0, None), (B + S, B + S, 1)],
)
def test_exact_division(numerator: Dim, denominator: Dim, expected: Dim | None) -> None:
    assert divide_exactly(numerator, denominator) == expected


def test_text_reads_like_mathematics() -> None:
    assert str(4 * B * S + 1) == "4*batch*seq + 1"
    assert str((B + 1) // 2) == "floor((batch + 1) / (2))"


def test_extrema_are_decided_where_sizes_of_one_or_more_decide_them():
    n, m = symbol("n"), symbol("m")
    assert dim_max(n - 1, -1) == n - 1 and dim_max(0, n) == n
    assert dim_min(n * 2 + m, 3) == 3 and dim_min(1, n) == 1
    assert dim_max(n - 2, 0) != n - 2  # where n is 1
    assert dim_max(n, m) not in (n, m)


def test_what_no_longer_depends_on_a_size_is_a_number() -> None:
    n = symbol("n")
    for number in ((n + 3) - n, 2 * n - n - n + 5, (n + 1) * (n - 1) - n * n):
        assert type(number) is int
    assert ((n + 3) - n, (n + 1) * (n - 1) - n * n, n - n) == (3, -1, 0)
    assert type(n + 1 - 1) is type(n)


def test_symbols_are_found_within_quotients_and_extrema() -> None:
    n, m, k = symbol("n"), symbol("m"), symbol("k")
    assert symbols_in((n + m) // (k + 1)) == {"n", "m", "k"}
    assert symbols_in(dim_max(n, m * k)) == {"n", "m", "k"} and symbols_in(dim_min(n, 7)) == {"n"}
    assert symbols_in(dim_max(n // 2, m)) == {"n", "m"} and symbols_in(3) == set()


def test_sums_in_any_order_are_equal() -> None:
    n, m = symbol("n"), symbol("m")
    assert n + m == m + n and str(n + m) == str(m + n) and hash(n * 2 + m * 2) == hash(m * 2 + n * 2)
