"""Products of halves in numpy, rounded where native arithmetic rounds: shared by tests."""

from __future__ import annotations

import numpy as np

BLOCK, CHAIN = 128, 16  # kHalfDepth and kChain of half_gemm.h


def rounded_to_odd(x: np.ndarray) -> np.ndarray:
    """Float32 of float64: towards zero, with a last bit that is set where anything is lost."""
    y = np.asarray(x, np.float64).astype(np.float32)
    beyond = np.abs(y.astype(np.float64)) > np.abs(x)
    odd = (y.view(np.uint32) - beyond) | np.uint32(1)
    return np.where(y == x, y, odd.view(np.float32))


def native_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a: [m,k], b: [k,n], of float16 or bfloat16; the product in float32."""
    add = _chains if a.dtype == np.float16 else _pairs
    y = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], BLOCK):
        y += add(a[:, k : k + BLOCK].astype(np.float64), b[k : k + BLOCK].astype(np.float64))
    return y


def _chains(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Chains of fused multiply-adds in float16, added up in float32."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], CHAIN):
        chain = np.zeros_like(sums, np.float16)
        for k in range(first, min(first + CHAIN, a.shape[1])):
            chain = (np.outer(a[:, k], b[k]) + chain).astype(np.float16)
        sums += chain.astype(np.float32)
    return sums


def _pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pairs of products, added to float32; both sums are rounded to odd."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], 2):
        pair = sum(np.outer(a[:, i], b[i]) for i in range(k, min(k + 2, a.shape[1])))
        sums = rounded_to_odd(sums.astype(np.float64) + rounded_to_odd(pair))
    return sums
