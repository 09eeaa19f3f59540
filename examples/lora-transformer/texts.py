"""Two texts that packages ship: English of programmers, to train a language model on, and one author's, to adapt it to.

The first are the docstrings of Python's standard library, the second the descriptions of the data sets in scikit-learn.
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import numpy as np
from sklearn import datasets

SYMBOLS = "\n !\"'()*+,-./0123456789:;=?[]_abcdefghijklmnopqrstuvwxyz"
LENGTH = 48  # characters that the model sees at once
_NUMBER = {symbol: number for number, symbol in enumerate(SYMBOLS)}


def encode(text: str) -> np.ndarray:
    """Numbers of symbols; capitals become small, other symbols are left out."""
    return np.array([_NUMBER[symbol] for symbol in text.lower() if symbol in _NUMBER], np.int64)


def everybody() -> np.ndarray:
    """Docstrings of Python's own modules, functions and classes."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                found.append(ast.get_docstring(node) or "")
    return encode("\n\n".join(found))


def author() -> tuple[np.ndarray, np.ndarray]:
    """A text to adapt to, and another one by the same authors to judge by."""
    learned = (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer, datasets.load_diabetes)
    held = (datasets.load_digits, datasets.load_linnerud)
    texts = ["\n".join(load().DESCR for load in loads) for loads in (learned, held)]
    return encode(texts[0]), encode(texts[1])


def windows(text: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symbols [windows, LENGTH] and the symbol that follows each [windows * LENGTH]."""
    at = starts[:, None] + np.arange(LENGTH)
    return text[at], text[at + 1].reshape(-1)


def whole(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All windows of a text, one after the other."""
    return windows(text, np.arange(0, len(text) - LENGTH - 1, LENGTH))
