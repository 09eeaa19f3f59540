"""Functions of one or two elements in one kernel, for libraries that are to be small: operators have kernels of their
own, whose calls this one can take over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from minbuild.ir import Shape
from minbuild.ops.core.broadcasting import AXES, FEATURES, WALK
from minbuild.ops.core.definition import BROADCAST, FLOATS, EqualLowering, KernelCall, KernelFunction

# By the kernels of their own, in the order in which merged_elementwise.cc numbers them.
_BROADCAST = ("add", "sub", "mul", "div")
_FUNCTIONS = (
    *_BROADCAST,
    "relu",
    "relu_grad",
    "sigmoid_grad",
    "tanh_grad",
    "neg",
    "abs",
    "sign",
    "sqrt",
    "reciprocal",
)

merged_kernel = KernelFunction(
    "merged",
    ("y:T=", "a:T", "b:T", WALK),
    params=(*AXES, "operation:int"),
    types={"T": FLOATS},
    features={**FEATURES, **{name: f"computes what {name} does" for name in _FUNCTIONS}},
    cut=BROADCAST,
)


def _merged(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """The same operands; functions of one take it twice."""
    function = call.kernel.function
    if call.types[0] not in FLOATS:
        return None
    y, a, *rest = call.args
    b, walk = (rest[0] if rest else a), (rest[1] if len(rest) > 1 else None)
    axes = call.params if function in _BROADCAST else (0, 0)
    operation = _FUNCTIONS.index(function)
    return (
        merged_kernel.call(
            *(y, a, b, walk),
            types=call.types,
            params=(*axes, operation),
            features=(*call.features, function),
        ),
    )


OPS = ()
KERNELS = (merged_kernel,)
EQUALS = (
    EqualLowering(
        "merged-elementwise",
        "One kernel of elementwise functions",
        MappingProxyType(dict.fromkeys(_FUNCTIONS, _merged)),
        (merged_kernel,),
        fewest=2,
        time=1.5,
    ),
)
