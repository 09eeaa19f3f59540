"""Random models with Scans: bodies of any operators, states that are passed on, exchanged or not read, slices of either
direction, one loop behind the other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from authored import source
from beside_interpreter import Beside, distance

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.compiled_model import CompiledModel
from minbuild.training.library import Library

REGISTRY = registry()
LONGEST, BATCH, WIDTH, HIDDEN = 40, 2, 3, 4
_UNARY = ("Abs", "Neg", "Sigmoid", "Softplus", "Tanh")
_LARGEST, _NEAR = 50, 2e-5  # numbers, and distances relative to the largest one
_BINARY = ("Add", "Max", "Mul", "Sub")
_SHAPE = f"float[{BATCH},{HIDDEN}]"


@dataclass
class _Body:
    """A body being written: its lines, and the values that may be read, the last ones most often."""

    random: np.random.Generator
    prefix: str
    lines: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)

    def value(self) -> str:
        count = len(self.there)
        some = count if self.random.random() < 0.6 else min(3, count)
        return self.there[count - 1 - self.random.integers(some)]

    def add(self, name: str, expression: str, readable: bool = True) -> str:
        name = f"{self.prefix}{name}"
        self.lines.append(f"{name} = {expression}")
        if readable:
            self.there.append(name)
        return name

    def any(self, name: str) -> None:
        """A value of any operator."""
        forms = (
            *(f"{self.random.choice(_UNARY)} ({self.value()})" for _ in range(4)),
            *(f"{self.random.choice(_BINARY)} ({self.value()}, {self.value()})" for _ in range(4)),
            f"Add ({self.value()}, C)",
            f"Gemm ({self.value()}, R, D)",
            f"MatMul ({self.value()}, R)",
        )
        self.add(name, str(self.random.choice(forms)))

    def next_state(self, i: int) -> str:
        """The state number `i` after a round; now and then another one, or what enters, as it is."""
        operator = self.random.choice(("Tanh", "Tanh", "Sigmoid", "Identity"))
        return self.add(f"n{i}", f"{operator} ({self.value()})", self.random.random() < 0.6)


@dataclass
class _Model:
    """A model being written: its loops, and what its output is the sum of."""

    random: np.random.Generator
    loops: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=lambda: ["sum0 = Add (zero, B)"])
    last: int = 0  # sum

    def count(self, most: int) -> int:
        return int(self.random.integers(1, most + 1))

    def sum(self, name: str) -> None:
        self.sums.append(f"sum{self.last + 1} = Add (sum{self.last}, {name})")
        self.last += 1

    def loop(self, number: int, entering: str, width: int) -> str:
        """Adds a loop over slices of `entering`; one of its stacks."""
        name = f"L{number}"
        body, states = _Body(self.random, name), [f"{name}s{i}" for i in range(self.count(3))]
        body.there += states
        first = "MatMul ({}, W)" if width == WIDTH else "Identity ({})"
        body.add("u", first.format(f"{name}x"))
        for i in range(2 + self.count(10)):
            body.any(f"v{i}")
        after = [body.next_state(i) for i in range(len(states))]
        for i in range(self.count(4)):
            body.any(f"w{i}")
        slices = [
            body.add(f"y{i}", f"Identity ({body.value()})", readable=False) for i in range(self.count(3))
        ]
        ends, stacks = (
            [f"{name}end{i}" for i in range(len(states))],
            [f"{name}all{i}" for i in range(len(slices))],
        )
        ways = [int(w) for w in self.random.integers(0, 2, 1 + len(slices))]
        starts = [str(self.random.choice(("start", "zero"))) for _ in states]
        inputs = [*(f"{_SHAPE} {s}" for s in states), f"float[{BATCH},{width}] {name}x"]
        outputs = [f"{_SHAPE} {n}" for n in (*after, *slices)]
        lines = "\n".join(body.lines)
        self.loops.append(
            f"{', '.join((*ends, *stacks))} = Scan <num_scan_inputs = 1, scan_input_directions = [{ways[0]}], "
            f"scan_output_directions = {ways[1:]}, body = {name}round ({', '.join(inputs)}) => "
            f"({', '.join(outputs)}) {{\n{lines}\n}}> ({', '.join(starts)}, {entering})"
        )
        for stack in stacks:
            if self.random.random() < 0.7:
                self.sums.append(f"mean{stack} = ReduceMean <axes = [0], keepdims = 0> ({stack})")
                self.sum(f"mean{stack}")
        for end in ends:
            if self.random.random() < 0.6:
                self.sum(end)
        return str(self.random.choice(stacks))


def random_loops(seed: int) -> tuple[TrainingArtifacts, int | None]:
    """Artifacts of a model of one to three loops, some or all of whose parameters train, and the number of rounds;
    None where that is free, up to LONGEST."""
    random = np.random.default_rng(seed)
    model, rounds = _Model(random), (None, None, 9, LONGEST)[random.integers(4)]
    entering, width = "x", WIDTH
    for number in range(model.count(3)):
        entering, width = model.loop(number, entering, width), HIDDEN
    model.sums.append(f"out = Identity (sum{model.last})")
    parts = "\n".join((*model.loops, *model.sums))
    text = f"m (float[{rounds or 'T'},{BATCH},{WIDTH}] x) => ({_SHAPE} out) {{\n{parts}\n}}"
    shapes = {"W": (WIDTH, HIDDEN), "R": (HIDDEN, HIDDEN), "start": (BATCH, HIDDEN)}
    shapes |= dict.fromkeys("BCD", (HIDDEN,))
    weights = {n: (random.standard_normal(s) / 2).astype(np.float32) for n, s in shapes.items()}
    weights["zero"] = np.zeros((BATCH, HIDDEN), np.float32)
    used = {n: a for n, a in weights.items() if re.search(rf"\b{n}\b", text)}
    some = [n for n in used if n in "WRCD" and random.random() < 0.5]
    train = (("B",), ("B", *some), ())[random.integers(3)]
    recipe = Recipe(loss="mse", optimizer="sgd", train=train, outputs=("out",))
    return artifacts_of(source(text, used), recipe, REGISTRY), rounds


def compared(
    made: TrainingArtifacts, rounds: int | None, model: CompiledModel, library: Library, seed: int = 3
) -> None:
    """Asserts that evaluations, losses and gradients of `model`, planned of `made` and built into `library`, are those
    of the interpreter; for one number of rounds after the other, where it is free. Ends where states amplify roundings:
    they grow, or the interpreter in single precision is elsewhere, too."""
    random, trainers = np.random.default_rng(seed), Beside(made, model, library, LONGEST)
    for count in (9, LONGEST, 3) if rounds is None else (rounds, rounds):
        shapes = (count, BATCH, WIDTH), (BATCH, HIDDEN)
        found, wanted, single = trainers.step([random.standard_normal(s).astype(np.float32) for s in shapes])
        amplified = any(distance(one, other) > _NEAR / 4 for one, other in zip(single, wanted, strict=True))
        if amplified or not max(np.abs(e).max() for e in wanted) <= _LARGEST:  # or none are numbers
            return
        worst = max(distance(one, other) for one, other in zip(found, wanted, strict=True))
        assert worst < _NEAR, f"differs by {worst:.1e} with {count} rounds"
