"""Unique of data at fixed size, for masked_selection.py: the distinct elements stand in the first places, in order,
and the first one is repeated behind them, so that an element can be taken by its number as well."""

from __future__ import annotations

from dataclasses import dataclass

from minbuild.authoring.selection_writer import Selected, SelectionWriter
from minbuild.ir import ElementType, Node
from minbuild.ir.dims import Dim

INT64, BOOL = int(ElementType.INT64), int(ElementType.BOOL)


def unique(graph: SelectionWriter, node: Node, flat: str, every: str, places: Dim) -> None:
    """Writes into `graph` the results of `node`, a Unique of the vector `flat`; `every` is 0, 1, ... up to its size,
    `places`."""
    title = next(filter(None, node.outputs))
    _Unique(graph, node, flat=flat, every=every, places=places, title=title).write()


@dataclass
class _Unique:
    """A Unique being written: all values are vectors of as many elements as there are places."""

    graph: SelectionWriter
    node: Node
    flat: str
    every: str
    places: Dim
    title: str

    def __post_init__(self) -> None:
        self.zero, self.one = (self.graph.integers(f"{self.title}/{n}", [n]) for n in (0, 1))
        self.size = self.add("Shape", self.flat, name="all")

    def add(self, op_type: str, *inputs: str, name: str, **attributes: object) -> str:
        return self.graph.add(op_type, *inputs, name=f"{self.title}/{name}", **attributes)

    def whole(self, flags: str, name: str) -> str:
        return self.add("Cast", flags, name=name, to=INT64)

    def numbers(self, flags: str, name: str) -> str:
        """The number of each of `flags` that is true, among those that are: from 0 on."""
        axis = self.graph.integers(f"{self.title}/{name}/axis", self.graph.lowering.content(self.zero)[0])  # type: ignore[index]
        sums = self.add("CumSum", self.whole(flags, f"{name}/whole"), axis, name=f"{name}/sums")
        return self.add("Sub", sums, self.one, name=name)

    def zeros(self, size: str, name: str) -> str:
        shaped = self.add("ConstantOfShape", size, name=f"{name}/real")
        return self.add("Cast", shaped, name=name, to=INT64)

    def scattered(self, indices: str, values: str, name: str) -> str:
        """`values` at `indices`, which are all of them in some order."""
        return self.add(
            "ScatterElements", self.zeros(self.size, f"{name}/zeros"), indices, values, name=name, axis=0
        )

    def first_places(self, flags: str, numbers: str, name: str) -> str:
        """The places at which `flags` are true, in order, then 0: all others are written behind the end."""
        at = self.add("Where", flags, numbers, self.size, name=f"{name}/at")
        longer = self.zeros(self.add("Add", self.size, self.one, name=f"{name}/longer"), f"{name}/buffer")
        written = self.add("ScatterElements", longer, at, self.every, name=f"{name}/written", axis=0)
        return self.add("Slice", written, self.zero, self.size, name=name)

    def write(self) -> None:
        order, heads, group, selected = self._groups()
        counts = self._counts(heads, selected.count)
        first = self.add("Gather", order, heads, name="first", axis=0)
        if self.node.attributes.get("sorted", 1):
            inverse = self.scattered(order, group, "inverse")
            start = self.add("Where", selected.mask, self.every, self.zero, name="start")
            counts = self.add("Gather", counts, start, name="count", axis=0)
        else:
            of_each = self.add("Gather", first, group, name="first_of_each", axis=0)
            earliest = self.scattered(order, of_each, "earliest")
            is_first = self.add("Equal", earliest, self.every, name="is_first")
            numbers = self.numbers(is_first, "numbers")
            first = self.first_places(is_first, numbers, "first_seen")
            inverse = self.add("Gather", numbers, earliest, name="inverse", axis=0)
            counts = self.scattered(
                order, self.add("Gather", counts, group, name="counts_of_each", axis=0), "count_there"
            )
            counts = self.add("Gather", counts, first, name="count", axis=0)
        y = self.add("Gather", self.flat, first, name="elements", axis=0)
        for output, value in zip(self.node.outputs, (y, first, inverse, counts), strict=False):
            if output:
                self.graph.add("Identity", value, name=output)
                if value != inverse:
                    self.graph.selected[output] = selected

    def _groups(self) -> tuple[str, str, str, Selected]:
        """The order of the sorted elements, where those begin that are equal, the number of the group of each, and the
        selection."""
        values, order = f"{self.title}/sorted", f"{self.title}/order"
        sort = {"axis": 0, "largest": 0, "sorted": 1}
        self.graph.emit(
            Node(
                *("TopK", "", self.graph.opset),
                name=values,
                inputs=(self.flat, self.size),
                outputs=(values, order),
                attributes=sort,
            )
        )
        later = self.add("Cast", self.every, name="later", to=BOOL)
        before = self.add("Sub", self.every, self.whole(later, "step"), name="before")
        same = self.add(
            "Equal", values, self.add("Gather", values, before, name="previous", axis=0), name="same"
        )
        repeated = self.add("And", same, later, name="repeated")
        new = self.add("Not", repeated, name="new")
        group = self.numbers(new, "group")
        heads = self.first_places(new, group, "heads")
        count = self.graph.over_axes(
            "ReduceSum", self.whole(new, "ones"), [0], name=f"{self.title}/number", keepdims=1, since=13
        )
        mask = self.add("Less", self.every, count, name="mask")
        return order, heads, group, Selected(mask, count, self.places, 0, in_order=True)

    def _counts(self, heads: str, count: str) -> str:
        """The distance from the beginning of each group to that of the next, or to the end."""
        next_one = self.add("Add", self.every, self.one, name="next")
        more = self.add("Less", next_one, count, name="more")
        at = self.add("Where", more, next_one, self.zero, name="next_or_first")
        following = self.add("Gather", heads, at, name="next_head", axis=0)
        return self.add(
            "Sub", self.add("Where", more, following, self.size, name="end"), heads, name="counts"
        )
