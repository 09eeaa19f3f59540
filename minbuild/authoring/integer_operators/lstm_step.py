"""The graph of a time step of a recurrent layer, being written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minbuild.ir import ElementType, Graph, Node, TensorType

_STATE = TensorType(ElementType.FLOAT, None)


@dataclass
class Step:
    """The nodes of a time step being written; names of its values begin with `prefix`."""

    prefix: str
    opset: int
    nodes: list[Node] = field(default_factory=list)

    def name(self, what: str) -> str:
        """The name of the value that is called `what` in a step."""
        return f"{self.prefix}/{what}"

    def write(self, kind: str, inputs: tuple[str, ...], output: str, domain: str = "") -> str:
        """Adds a node of operator `kind` in `domain` that reads `inputs`, with one result, called `output` in a step:
        its name."""
        self.add(kind, inputs, (self.name(output),), domain=domain)
        return self.name(output)

    def split(self, inputs: tuple[str, ...], **attributes: Any) -> tuple[str, ...]:
        """Adds a Split of `inputs` into the four gates, with these `attributes`: their names."""
        parts = tuple(self.name(f"gate {n}") for n in ("input", "output", "forget", "cell"))
        self.add("Split", inputs, parts, **attributes)
        return parts

    def graph(self, inputs: tuple[str, ...], outputs: tuple[str, ...], source: str) -> Graph:
        """The body of a Scan, from `inputs` to `outputs`; `source` is the file for messages."""
        nodes, typed = tuple(self.nodes), dict.fromkeys(inputs, _STATE)
        return Graph(source, nodes=nodes, inputs=typed, sequences={}, outputs=outputs, initializers={})

    def add(
        self,
        kind: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Adds a node of operator `kind` in `domain` with these `inputs`, `outputs` and `attributes`."""
        self.nodes.append(
            Node(
                kind,
                domain,
                1 if domain else self.opset,
                name=f"{outputs[0]}/{kind}",
                inputs=inputs,
                outputs=outputs,
                attributes=attributes,
            )
        )
