"""An estimate of the time of a training step from its plan, to compare plans of one model with each other."""

from __future__ import annotations

from collections.abc import Mapping

from minbuild.ir import Plan, Shape
from minbuild.ir.dims import evaluate, product, symbols_in
from minbuild.ops import Registry
from minbuild.passes.analysis.call_costs import BYTES, CALL, MULTIPLICATIONS


def step_seconds(plan: Plan, registry: Registry, sizes: Mapping[str, int]) -> float:
    """Seconds of the first routine of `plan`, the training step, at these `sizes` of free dimensions: its calls, the
    bytes that they move and their multiplications. Calls of kernels that lowerings of `registry` chose take as much
    longer as those were measured to."""
    longer = {kernel.function: equal.time for equal in registry.lowerings for kernel in equal.kernels}
    seconds = 0.0
    for step in plan.routines[0].steps:
        function = registry.functions[plan.kernels[step.kernel].function]
        tensors = [plan.tensors[arg] if arg >= 0 else None for arg in step.args]
        shapes: list[Shape] = [tensor.shape if tensor else () for tensor in tensors]
        data = [slot[0] != 0 for slot in plan.kernels[step.kernel].args]  # extents have none
        moved = sum(
            _size(t.shape, sizes) * t.element.size for t, has in zip(tensors, data, strict=True) if t and has
        )
        work = _size((function.work(step.params, shapes),), sizes) if function.work else 0
        seconds += (CALL + moved / BYTES + work / MULTIPLICATIONS) * longer.get(function.function, 1.0)
    return seconds


def _size(shape: Shape, sizes: Mapping[str, int]) -> int:
    dim = product(shape)
    return evaluate(dim, {name: sizes[name] for name in symbols_in(dim)})
