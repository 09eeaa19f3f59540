"""Derives the polynomial coefficients of kernels/lib/simd (math.h, expm1_log1p.h, trigonometry.h) and of gelu.cc;
prints them as they stand there.

Each polynomial minimises the largest weighted error over dense Chebyshev nodes: least squares repeated with
weights raised where the error is large (Lawson's iteration), in float64. Coefficients are then fixed to
float32 one after the other, lowest power first, and the rest fitted again.
Run: python tests/slow/derive_polynomials.py
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]


def nodes(low: float, high: float, count: int = 4001) -> np.ndarray:
    """Chebyshev points of the interval, dense at both ends."""
    return (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(count) + 0.5) / count)


def minimax(basis: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Coefficients of the basis columns with the smallest maximum of |weight * (basis @ c - target)|."""
    emphasis = np.ones_like(target)
    best, best_error = np.zeros(basis.shape[1]), math.inf
    for _ in range(60):
        scale = weight * np.sqrt(emphasis)
        coefficients = np.linalg.lstsq(basis * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs(weight * (basis @ coefficients - target))
        if error.max() < best_error:
            best, best_error = coefficients, error.max()
        emphasis *= error + 1e-3 * error.max()
        emphasis /= emphasis.mean()
    return best


def fit(f: Function, low: float, high: float, powers: range, weight: Function) -> tuple[np.ndarray, float]:
    """float32 coefficients of x**powers near f on [low, high], and the largest weighted error they leave."""
    x = nodes(low, high)
    target, w = f(x), weight(x)
    columns = [x**p for p in powers]
    fixed: list[float] = []
    for index in range(len(columns)):
        done = sum((c * column for c, column in zip(fixed, columns, strict=False)), np.zeros_like(x))
        rest = minimax(np.stack(columns[index:], axis=1), target - done, w)
        fixed.append(float(np.float32(rest[0])))
    value = sum(c * column for c, column in zip(fixed, columns, strict=True))
    return np.array(fixed), float(np.abs(w * (value - target)).max())


def one(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def elementwise(f: Callable[[float], float]) -> Function:
    return lambda x: np.array([f(float(v)) for v in x])


def show(name: str, result: tuple[np.ndarray, float]) -> None:
    """Highest power first, as poly() takes them."""
    coefficients, error = result
    print(f"{name}: error {error:.2e}")
    print("  " + ", ".join(f"{c:.9g}f" for c in coefficients[::-1]))


def tanh_rest(z: np.ndarray) -> np.ndarray:
    """(tanh(x)/x - 1) / x^2 for z = x^2."""
    x = np.sqrt(z)
    return (np.tanh(x) / x - 1) / z


def series(first: int, step: int, sign: int = 1, odd_only: bool = False) -> Function:
    """Sum of sign^(n+1) * z^n / (first + step*n)!, or over first + step*n itself."""

    def term(n: int) -> float:
        number = first + step * n
        return sign ** (n + 1) / (number if odd_only else math.factorial(number))

    return elementwise(lambda z: math.fsum(term(n) * z**n for n in range(25)))


def show_near_zero() -> None:
    """e^x - 1 = x + x^2 P(x) for |x| < 1/2; the error counts relative to it."""
    powers = fit(series(2, 1), -0.5, 0.5, range(6), lambda x: np.abs(x * x / np.expm1(x)))
    show("expm1 x+x*x*P(x)", powers)


def show_trigonometry() -> None:
    """Of angles up to pi/4 and a bit, and of tangents up to that of pi/8; z = x^2."""
    top = (math.pi / 4 * 1.002) ** 2
    show("sin   x+x*z*P(z)", fit(series(3, 2, -1), 0, top, range(3), lambda z: z))
    cosine_rest = lambda z: -series(4, 2, -1)(z)  # noqa: E731
    show("cos   1-z/2+z*z*P(z)", fit(cosine_rest, 0, top, range(3), lambda z: z * z / np.cos(np.sqrt(z))))
    arc_rest = series(3, 2, -1, odd_only=True)
    show("atan  x+x*z*P(z)", fit(arc_rest, 0, math.tan(math.pi / 8) ** 2, range(5), lambda z: z))


def show_normal() -> None:
    """Mills' ratio over sqrt(2 pi), 1/2 + u P(u), of distances a up to 6 from the mean; u = q / (1 + q), q = 0.27 a.
    The error counts as that of a probability, and a bit where those are small."""
    scale = float(np.float32(0.27))
    distance = lambda u: u / (scale * (1 - u))  # noqa: E731
    bell = lambda u: np.exp(-(distance(u) ** 2) / 2)  # noqa: E731
    tail = elementwise(lambda u: math.erfc(distance(u) / math.sqrt(2)) / 2)
    top = 6 * scale / (1 + 6 * scale)
    rest = lambda u: (tail(u) / bell(u) - 0.5) / u  # noqa: E731
    show("gelu  1/2+u*P(u)", fit(rest, 1e-6, top, range(6), lambda u: u * (bell(u) + 0.02)))


def main() -> None:
    """Prints every polynomial with its error."""
    half = math.log(2) / 2
    # e^r = 1 + r + r^2 P(r); the error counts relative to e^r.
    exp_rest = lambda r: np.array([math.fsum(v**n / math.factorial(n + 2) for n in range(18)) for v in r])  # noqa: E731
    show("exp   r^2*P(r)", fit(exp_rest, -half * 1.002, half * 1.002, range(5), lambda r: r * r / np.exp(r)))
    # log(1+f) = 2s + s*R(s^2), s = f/(2+f); R = z*P(z), weight z = s^2 (relative to 2s, halved).
    top = ((math.sqrt(2) - 1) / (math.sqrt(2) + 1)) ** 2
    log_rest = lambda z: np.array([math.fsum(2 * v**n / (2 * n + 3) for n in range(30)) for v in z])  # noqa: E731
    show("log   z*P(z)", fit(log_rest, 0, top, range(4), lambda z: z / 2))
    # tanh x = x + x z P(z), z = x^2 < 0.625^2.
    show("tanh  x+x*z*P(z)", fit(tanh_rest, 1e-6, 0.625**2, range(5), lambda z: z))
    # erf x = x + x P(z), z = x^2 <= 1: P(0) = 2/sqrt(pi) - 1.
    erf_over_x = elementwise(lambda z: math.erf(math.sqrt(z)) / math.sqrt(z) - 1)
    show("erf   x+x*P(z)", fit(erf_over_x, 1e-9, 1.0, range(7), lambda z: 1 / (1 + erf_over_x(z))))
    # erfc a = exp(P(a - 1)) for 1 <= a <= 4; the error counts as that of 1 - erfc.
    log_erfc = elementwise(lambda a: math.log(math.erfc(a + 1)))
    weight = elementwise(lambda a: math.erfc(a + 1))
    show("erfc  exp(P(a-1))", fit(log_erfc, 0.0, 3.0, range(7), weight))
    show_normal()
    show_near_zero()
    show_trigonometry()


if __name__ == "__main__":
    main()
