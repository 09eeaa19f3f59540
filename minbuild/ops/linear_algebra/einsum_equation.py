"""Sums of products as numpy's einsum writes them: a letter for each axis of every operand, then of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_letters

import numpy as np

from minbuild.ir import Shape
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import UnsupportedUse, require_equal
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Value

ELLIPSIS = "..."


@dataclass(frozen=True)
class Equation:
    """The axes of the operands and of the result by letters. A letter that the result lacks is summed over; one that
    an operand has twice is a diagonal."""

    operands: tuple[str, ...]
    y: str

    @classmethod
    def parse(cls, text: str, ranks: Sequence[int]) -> Equation:
        """`ab,bc->ac` for operands of these ranks. An ellipsis stands for any axes, which are letters here too; without
        `->` the result has the letters that occur once, in order, behind the ellipsis. Raises Unknown."""
        left, arrow, y = text.replace(" ", "").partition("->")
        operands = left.split(",")
        if len(operands) != len(ranks):
            raise UnsupportedUse(f"equation '{text}' is for {len(operands)} operands; {len(ranks)} are given")
        if not arrow:
            named = left.replace(",", "").replace(ELLIPSIS, "")
            y = ELLIPSIS * (ELLIPSIS in left) + "".join(c for c in sorted(set(named)) if named.count(c) == 1)
        hidden = [r - len(o.replace(ELLIPSIS, "")) for o, r in zip(operands, ranks, strict=True)]
        spare = fresh_letters(text, max([0, *hidden]))
        if any(h != 0 if ELLIPSIS not in o else h < 0 for o, h in zip(operands, hidden, strict=True)):
            raise UnsupportedUse(f"equation '{text}' does not fit operands of ranks {list(ranks)}")
        written = (
            o.replace(ELLIPSIS, spare[len(spare) - h :]) for o, h in zip(operands, hidden, strict=True)
        )
        equation = cls(tuple(written), y.replace(ELLIPSIS, spare))
        letters = "".join(equation.operands)
        if not (letters + equation.y).isalpha() and letters + equation.y or set(equation.y) - set(letters):
            raise UnsupportedUse(f"equation '{text}' is not one of letters, commas, '->' and '...'")
        return equation

    def __str__(self) -> str:
        return f"{','.join(self.operands)}->{self.y}"

    def extents(self, shapes: Sequence[Shape]) -> dict[str, Dim]:
        """The size of every axis; operands where it is 1 repeat. Raises Unknown where sizes differ."""
        found: dict[str, Dim] = {}
        for letters, shape in zip(self.operands, shapes, strict=True):
            if len(letters) != len(shape):
                raise UnsupportedUse(f"shape {list(shape)} does not fit '{letters}' of {self}")
            for letter, size in zip(letters, shape, strict=True):
                if found.setdefault(letter, size) == 1:
                    found[letter] = size
                elif size not in (1, found[letter]):
                    sizes = " and ".join(str(list(s)) for s in shapes)
                    require_equal(found[letter], size, f"shapes {sizes} do not fit {self}")
        return found

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The sum of products in numpy."""
        if any(x.dtype == object for x in operands):
            raise TypeError("products of dimensions are the device's")
        sizes = self.extents([x.shape for x in operands])
        expanded = [
            np.broadcast_to(x, tuple(int(sizes[c]) for c in letters))  # type: ignore[arg-type]
            for letters, x in zip(self.operands, operands, strict=True)
        ]
        return np.asarray(np.einsum(str(self), *expanded)).astype(operands[0].dtype)


def fresh_letters(used: str, count: int) -> str:
    """Letters that are not among the used ones."""
    free = [c for c in ascii_letters if c not in used]
    if len(free) < count:
        raise UnsupportedUse("an equation with more axes than there are letters")
    return "".join(free[:count])


Write = Callable[[Sequence[Value], str], Value]


def operand_gradient(b: GradientBuilder, equation: Equation, i: int, write: Write) -> Value:
    """The gradient of operand `i`: the product of all others with the result's gradient. `b` is the graph, `equation`
    names the axes, `write` makes the node of a product."""
    shapes = [b.ctx.shape(k) for k in range(len(equation.operands))]
    sizes = equation.extents(shapes)
    own, shape = equation.operands[i], shapes[i]
    others = [k for k in range(len(shapes)) if k != i]
    operands = [b.dy[0], *(b.x[k] for k in others)]
    letters = [equation.y, *(equation.operands[k] for k in others)]
    flowing = set(zip(equation.y, (sizes[c] for c in equation.y), strict=True))
    flowing.update(pair for k in others for pair in zip(equation.operands[k], shapes[k], strict=True))
    place = ""
    for letter, size in zip(own, shape, strict=True):
        if letter in place:  # a diagonal: nothing flows elsewhere
            if not isinstance(size, int):
                raise UnsupportedUse(f"the gradient of a diagonal of the free dimension {size}")
            other = fresh_letters("".join((*letters, own, place)), 1)
            operands.append(b.constant(np.eye(size)))
            letters.append(letter + other)
            flowing.update(((letter, size), (other, size)))
            letter = other
        place += letter
    # Along other axes of the operand there is one value for all.
    kept = [a for a, pair in enumerate(zip(place, shape, strict=True)) if pair in flowing]
    made = write(operands, f"{','.join(letters)}->{''.join(place[a] for a in kept)}")
    missing = [a for a in range(len(place)) if a not in kept]
    made = made.unsqueeze(missing)
    if any(shape[a] != 1 for a in missing):
        made = made.expand_like(b.x[i])
    return made


OPS: tuple[()] = ()
