"""The gradient of a Scan: a Scan that runs the other way.

Its states are the gradients of the forward states and the sums of the gradients of what every round reads unchanged,
such as weights; its scan outputs are gradients of scan inputs. Values of the forward rounds that gradients need are
saved as further scan outputs, or computed a second time where that takes less memory and no product. The guard of a
guarded loop (`frontend/onnx/guards.py`) is saved, and guards the rounds that run back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.authoring.autodiff.sweep import Sweep, nodes_for
from minbuild.authoring.autodiff.tape import Application, Tape
from minbuild.frontend.onnx.guards import guard_of
from minbuild.frontend.onnx.loops import directions, identities, unchanged_states
from minbuild.frontend.onnx.subgraphs import renamed
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops.core.definition import UnsupportedUse
from minbuild.passes.analysis.representative_sizes import PLANNED_SIZES

_ANY = TensorType(ElementType.FLOAT, None)
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "FusedMatMul", "FusedGemm", "MatMulNBits", "MatMulBnb4"})


def loop_gradient(sweep: Sweep, application: Application) -> Node:
    """Adds the backward nodes of a Scan to `sweep`; the Scan as training runs it."""
    return _LoopGradient(sweep, application.node).run()


@dataclass
class _LoopGradient:
    """One Scan being differentiated."""

    sweep: Sweep
    node: Node
    ended: set[str] = field(default_factory=set)  # values of the backward body that are results of it

    def __post_init__(self) -> None:
        self.body: Graph = self.node.attributes["body"]
        self.scans = int(self.node.attributes["num_scan_inputs"])
        self.states = len(self.node.inputs) - self.scans
        self.unchanged = unchanged_states(self.node)
        self.guard = guard_of(self.node, self.sweep.tape.lowering)
        if self.guard is not None:
            self.body = self.guard.body
        self.title = self.sweep.title(f"{self.node.name or self.node.outputs[0]}_Grad")

    def run(self) -> Node:
        sweep, node = self.sweep, self.node
        names = list(self.body.inputs)
        types = {n: self.type_of(i) for i, n in enumerate(names)}
        tape = Tape(replace(self.body, inputs=types), sweep.tape.registry, sweep.tape.opset, loops=False)
        tape.record(())
        real = {n for n in names if types[n].element.is_real}
        carried = [i for i in range(self.states) if i not in self.unchanged and names[i] in real]
        summed = [i for i in self.unchanged if names[i] in real and node.inputs[i] in sweep.path]
        sliced = [
            i for i in range(self.states, len(names)) if names[i] in real and node.inputs[i] in sweep.path
        ]
        dy = [sweep.total(n) if n in sweep.path else "" for n in node.outputs]
        seeds = [(self.body.outputs[i], f"{self.title}/state {i}") for i in carried]
        flows = [k for k in range(self.states, len(dy)) if dy[k]]
        seeds += [(self.body.outputs[k], f"{self.title}/flow {k}") for k in flows]
        wrt = tuple(names[i] for i in (*carried, *summed, *sliced))
        inner = Sweep(tape, tuple(n for n, _ in seeds), wrt, frozenset())
        inner.taken |= {s for _, s in seeds}
        gradients = inner.flow(seeds)
        inner.backward = list(nodes_for(inner.backward, gradients.values()))
        forward = inner.forward_nodes()
        saved, again = _Saving(tape, forward, inner.backward, self).choose()
        if self.guard is not None and self.guard.name in names[: self.states]:
            saved = (*saved, self.guard.name)
        handed = self.handed_back(forward, saved)
        saved = tuple(n for n in saved if n not in handed)
        stacks, trained = self.with_stacks(tape, forward, saved)

        zeros: list[Node] = []
        body: list[Node] = [*again, *inner.backward]
        first: list[tuple[str, str, str]] = []  # states: around, in the body, after a round
        results: list[tuple[int, str]] = []  # (input of the node, output of the backward one)
        for i in carried:
            after = gradients.get(names[i]) or self.zero(body, types[names[i]])
            start = dy[i] or self.zeros_like(zeros, node.inputs[i])
            first.append((start, f"{self.title}/state {i}", after))
        for i in summed:
            if names[i] in gradients:
                total, after = f"{self.title}/sum {i}", f"{self.title}/sum {i} after"
                body.append(self.plain("Add", (total, gradients[names[i]]), after))
                first.append((self.zeros_like(zeros, node.inputs[i]), total, after))
        read = {n for each in body for n in each.inputs} | {after for *_, after in first}
        read |= {gradients[names[i]] for i in sliced if names[i] in gradients}
        for name, i in handed.items():
            first.append((node.outputs[i], name, names[i]))
            read.add(names[i])
        read |= {self.guard.name} if self.guard is not None else set()
        for i in self.unchanged:
            if names[i] in read:
                after = f"{self.title}/{names[i]} unchanged"
                body.append(self.plain("Identity", (names[i],), after))
                first.append((node.inputs[i], names[i], after))
        entering = directions(node, "scan_input_directions", self.scans)
        leaving = directions(node, "scan_output_directions", len(node.outputs) - self.states)
        scans = [
            (node.inputs[i], names[i], 1 - entering[i - self.states])
            for i in range(self.states, len(names))
            if names[i] in read
        ]
        scans += [(stacks[n][0], n, 1 - stacks[n][1]) for n in saved if n in read]
        scans += [(dy[k], f"{self.title}/flow {k}", 1 - leaving[k - self.states]) for k in flows]
        if not scans:  # whose rounds would be counted by nothing
            scans = [(node.inputs[-1], names[-1], 1)]
        made = [
            (i, gradients[names[i]], 1 - entering[i - self.states]) for i in sliced if names[i] in gradients
        ]
        outputs = [f"{self.title}/final {k}" for k in range(len(first))]
        for k, i in enumerate(carried):
            if node.inputs[i] in sweep.path:
                results.append((i, outputs[k]))
        kept = [i for i in summed if names[i] in gradients]
        results += [(i, outputs[len(carried) + k]) for k, i in enumerate(kept)]
        named = {out: sweep.name(node.inputs[i]) for i, out in results}
        stacked = [sweep.name(node.inputs[i]) for i, *_ in made]
        ends = self.own_ends(body, [(end, n) for (_, end, _), n in zip(made, stacked, strict=True)])
        afters = self.own_ends(body, [(after, o) for (*_, after), o in zip(first, outputs, strict=True)])
        if self.guard is not None:
            ends = [
                self.chosen(body, end, self.nothing(body, types[names[i]]))
                for end, (i, *_) in zip(ends, made, strict=True)
            ]
            changing = len(carried) + len(kept)
            afters[:changing] = [
                self.chosen(body, after, before)
                for after, (_, before, _) in zip(afters[:changing], first, strict=False)
            ]

        def own(name: str) -> str:
            return name if not name or name.startswith(f"{self.title}/") else f"{self.title}/{name}"

        graph = Graph(
            self.body.source,
            nodes=tuple(renamed(each, own, self.title) for each in body),
            inputs={own(n): _ANY for n in (*(b for _, b, _ in first), *(b for _, b, _ in scans))},
            sequences={},
            outputs=tuple(own(n) for n in (*afters, *ends)),
            initializers={own(n): a for n, a in self.body.initializers.items() if n in read},
        )
        sweep.backward += zeros
        sweep.backward.append(
            Node(
                "Scan",
                "",
                node.version,
                name=self.title,
                inputs=(*(o for o, _, _ in first), *(o for o, _, _ in scans)),
                outputs=(*(named.get(o, o) for o in outputs), *stacked),
                attributes={
                    "body": graph,
                    "num_scan_inputs": len(scans),
                    "scan_input_directions": tuple(d for *_, d in scans),
                    "scan_output_directions": tuple(d for *_, d in made),
                },
            )
        )
        return trained

    def handed_back(self, forward: Sequence[Node], saved: Sequence[str]) -> dict[str, int]:
        """Values of `saved` that are states after a round, by the number of the state, where the states before rounds
        are saved, too: the round that runs back before has them already, and the first finds the last state."""
        names, same = list(self.body.inputs), identities(forward)
        if self.guard is not None:  # whose rounds may end early
            return {}
        ends = {
            same.get(after, after): i
            for i, after in enumerate(self.body.outputs[: self.states])
            if i not in self.unchanged and names[i] in saved
        }
        stacked = {same.get(n, n) for n in self.body.outputs[self.states :]}
        return {n: ends[n] for n in saved if n in ends and n not in stacked}

    def own_ends(self, body: list[Node], ends: Sequence[tuple[str, str]]) -> list[str]:
        """Results of the body, each made by a node of its own."""
        found = []
        for value, label in ends:
            name = f"{self.title}/end {label}"
            made = {n for each in body for n in each.outputs}
            if value in made and value not in self.ended:
                found.append(value)
                self.ended.add(value)
            else:
                body.append(self.plain("Identity", (value,), name))
                found.append(name)
        return found

    def chosen(self, nodes: list[Node], one: str, other: str) -> str:
        """`one` in rounds that run, else `other`."""
        assert self.guard is not None
        name = f"{self.title}/chosen {len(nodes)}"
        nodes.append(self.plain("Where", (self.guard.name, one, other), name))
        return name

    def nothing(self, nodes: list[Node], tensor: TensorType) -> str:
        """A zero of a type."""
        name = f"{self.title}/nothing {len(nodes)}"
        zero = {"value": np.zeros((), tensor.element.dtype)}
        nodes.append(replace(self.plain("Constant", (), name), attributes=zero))
        return name

    def type_of(self, i: int) -> TensorType:
        """The type of input number `i` of the body."""
        outer = self.sweep.tape.type_of(self.node.inputs[i])
        return outer if i < self.states else replace(outer, shape=(outer.shape or ())[1:])

    def plain(self, op: str, inputs: tuple[str, ...], output: str) -> Node:
        name = f"{self.title}/{op} {output}"
        return Node(op, "", self.sweep.tape.opset, name=name, inputs=inputs, outputs=(output,))

    def zero(self, body: list[Node], tensor: TensorType) -> str:
        """Zeros of a type in every round."""
        if not all(isinstance(d, int) for d in tensor.shape or ()):
            raise UnsupportedUse("a state without a gradient has a free size")
        name = f"{self.title}/zero {len(body)}"
        value = np.zeros(tuple(d for d in tensor.shape or () if isinstance(d, int)), tensor.element.dtype)
        body.append(replace(self.plain("Constant", (), name), attributes={"value": value}))
        return name

    def zeros_like(self, nodes: list[Node], name: str) -> str:
        shape, zero = f"{self.title}/shape of {name}", f"{self.title}/zeros like {name}"
        if any(zero in node.outputs for node in nodes):  # several states may start from one value
            return zero
        element = self.sweep.tape.type_of(name).element
        nodes.append(self.plain("Shape", (name,), shape))
        value = {"value": np.zeros(1, element.dtype)}
        nodes.append(replace(self.plain("ConstantOfShape", (shape,), zero), attributes=value))
        return zero

    def with_stacks(
        self, tape: Tape, forward: Sequence[Node], saved: Sequence[str]
    ) -> tuple[dict[str, tuple[str, int]], Node]:
        """For each value of `tape` that is saved, the scan output of the forward node that has it and its direction,
        and that node. `forward` are the nodes of its body, as training runs them."""
        node = self.node
        same = identities(forward)
        leaving = directions(node, "scan_output_directions", len(node.outputs) - self.states)
        has = {
            same.get(inner, inner): (outer, way)
            for inner, outer, way in zip(
                self.body.outputs[self.states :], node.outputs[self.states :], leaving, strict=True
            )
        }
        stacks: dict[str, tuple[str, int]] = {}
        copies: list[Node] = []
        ends, more = [], []
        for name in saved:
            if same.get(name, name) in has:
                stacks[name] = has[same.get(name, name)]
                continue
            copy, stack = f"{self.title}/{name} saved", self.sweep.unused(f"{self.title}/saved {name}")
            if self.guard is not None and name != self.guard.name:
                zero = self.nothing(copies, tape.type_of(name))
                copies.append(self.plain("Where", (self.guard.name, name, zero), copy))
            else:
                copies.append(self.plain("Identity", (name,), copy))
            ends.append(copy)
            more.append(stack)
            stacks[name] = has[same.get(name, name)] = (stack, 0)
        choices = self.guard.choices if self.guard is not None else {}
        forward = [choices.get(each.outputs[0], each) for each in forward]
        body = replace(self.body, nodes=(*forward, *copies), outputs=(*self.body.outputs, *ends))
        attributes = {**node.attributes, "body": body}
        if node.attributes.get("scan_output_directions"):
            attributes["scan_output_directions"] = (*leaving, *(0 for _ in more))
        return stacks, replace(node, outputs=(*node.outputs, *more), attributes=attributes)


class _Saving:
    """The choice between saving values of the forward rounds and computing them a second time."""

    def __init__(
        self, tape: Tape, forward: Sequence[Node], backward: Sequence[Node], loop: _LoopGradient
    ) -> None:
        self.tape, self.backward = tape, backward
        self.maker = {n: (i, node) for i, node in enumerate(forward) for n in node.outputs if n}
        ops = [each.op for each in tape.applications]
        self.heavy = {i for i, op in enumerate(ops) if op.flops is not None or op.name in _PRODUCTS}
        inputs = list(loop.body.inputs)
        changing = [i for i in range(loop.states) if i not in loop.unchanged]
        self.carried = {inputs[i] for i in changing}
        self.free = {*inputs, *loop.body.initializers} - self.carried
        same = identities(forward)
        self.stacked = {same.get(n, n) for n in loop.body.outputs[loop.states :]}
        self.saved: dict[str, None] = {}

    def choose(self) -> tuple[tuple[str, ...], list[Node]]:
        """The values to save, and the nodes that compute the others that gradients read."""
        read = {n for node in self.backward for n in node.inputs if n in self.maker or n in self.carried}
        for name in sorted(read, key=lambda n: (self.maker[n][0] if n in self.maker else -1, n)):
            self.saved |= dict.fromkeys(sorted(self.cheapest(name)))
        again: set[int] = set()
        left = [n for n in read if n not in self.saved]
        while left:
            name = left.pop()
            if name in self.maker and name not in self.saved:
                i, node = self.maker[name]
                again.add(i)
                left += [n for n in node.inputs if n]
        forward = dict(self.maker.values())
        return tuple(self.saved), [forward[i] for i in sorted(again)]

    def cheapest(self, name: str) -> frozenset[str]:
        """The values to save for `name`: itself, or fewer bytes of others that it follows from without products."""
        if not name or name in self.free or name in self.saved:
            return frozenset()
        if name in self.carried or name in self.stacked:
            return frozenset({name})
        i, node = self.maker[name]
        if i in self.heavy:
            return frozenset({name})
        others = frozenset().union(*(self.cheapest(n) for n in node.inputs))
        cost = sum(self.bytes_of(n) for n in others if n not in self.stacked)
        return others if cost < self.bytes_of(name) else frozenset({name})

    def bytes_of(self, name: str) -> int:
        tensor = self.tape.type_of(name) if name in self.tape.lowering.values else None
        if tensor is None:  # what training adds to an application
            return 1 << 40
        count: Dim = product(tensor.shape or ()) * tensor.element.size
        return evaluate(count, dict.fromkeys(symbols_in(count), PLANNED_SIZES[-1]))
