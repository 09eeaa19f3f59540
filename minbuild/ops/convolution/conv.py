"""Conv over one to three spatial axes; the kernel serves its gradients as well."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import Call, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.convolution.conv_cases import conv_cases
from minbuild.ops.convolution.conv_channels import channels_of_output
from minbuild.ops.convolution.conv_layer import MADE_ELEMENTS, Layer, conv_window
from minbuild.ops.convolution.conv_params import (
    ARGS,
    INPUT_GRADIENT,
    OUTPUT,
    PARAMS,
    multiplications,
)
from minbuild.ops.convolution.conv_reference import reference
from minbuild.ops.convolution.depthwise_conv import (
    depthwise_features,
    depthwise_kernel,
    depthwise_scratch,
    takes_depthwise,
)
from minbuild.ops.convolution.grouped_conv import (
    grouped_features,
    grouped_kernel,
    grouped_scratch,
    takes_grouped,
)
from minbuild.ops.convolution.sliding_window import explicit_pads
from minbuild.ops.convolution.winograd_conv import (
    takes_winograd,
    winograd_features,
    winograd_kernel,
    winograd_scratch,
)
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    first_input,
    require_equal,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.linear_algebra.gemm_packing import PACKED_BYTES
from minbuild.ops.quantization.dequantize import FORMAT_FEATURES, FORMAT_PARAMS

_TYPES = {"T": FLOATS}
_FEATURES = {
    "pointwise": "windows of one element",
    "depthwise": "one filter per channel",
    "groups": "filters that see some of the channels",
    "strides": "windows that move by more than one element",
    "dilations": "windows with gaps",
    "volume": "three spatial axes",
    "lines": "one spatial axis",
    "bias": "adds a number to every channel",
    "exchanged": "input gradients of real size, of windows that move by one element",
    "padded": "layers of real size with padding around small images",
    "pairs": "layers of real size whose windows move by two elements along a line",
    "patches": "layers of real size whose windows move by a multiple of four elements along a line",
    "wide_images": "layers of real size over images as wide as the vectors of AVX-512",
    "half_panels": "layers of real size whose last outputs half fill the vectors of AVX-512",
    "dequantize": "weights in 4, 8 or 16 bits",
    "dequantize_transposed": "input gradients of layers with such weights",
}
_HINTS = frozenset({"pairs", "patches", "wide_images", "half_panels"})
_SHARE_BYTES = PACKED_BYTES + 1024  # of packed blocks of a further thread

conv_kernel = KernelFunction(
    "conv",
    ARGS,
    PARAMS,
    _TYPES,
    _FEATURES,
    hints=_HINTS,
    share=lambda params, first: first if params[1] > 1 else 0,
    work=multiplications,
)
packed_kernel = KernelFunction(
    "conv_packed",
    conv_kernel.args,
    conv_kernel.params,
    conv_kernel.types,
    conv_kernel.features,
    hints=_HINTS,
    share=lambda params, first: _SHARE_BYTES + (MADE_ELEMENTS * 4 if params[0] == INPUT_GRADIENT else 0),
    work=multiplications,
)
LAYER_KERNELS = (conv_kernel, packed_kernel, depthwise_kernel, grouped_kernel, winograd_kernel)
# The same with weights that stay in 4, 8 or 16 bits; `b` is their shape.
dequantizing_kernel = KernelFunction(
    "conv_dequantize",
    (
        *("out:T=", "a:T", "b:extent", "bias:T?", "bytes:scratch"),
        *("q:uint8", "scale:float", "zero_point:uint8?", "table:float?", "row:scratch"),
    ),
    (*conv_kernel.params, *FORMAT_PARAMS),
    _TYPES,
    {**_FEATURES, **FORMAT_FEATURES},
    hints=_HINTS,
    share=conv_kernel.share,
    work=multiplications,
)
dequantizing_packed_kernel = KernelFunction(
    "conv_dequantize_packed",
    dequantizing_kernel.args,
    dequantizing_kernel.params,
    _TYPES,
    dequantizing_kernel.features,
    hints=_HINTS,
    share=packed_kernel.share,
    work=multiplications,
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    x, w = ctx.shape(0), ctx.shape(1)
    spatial = tuple(a.outputs for a in conv_window(ctx.attributes, x, w))
    channels = w[1] * int(ctx.attribute("group", 1))
    require_equal(x[1], channels, f"channels of {list(x)} do not fit weights {list(w)}")
    return (TensorType(ctx.element(), (x[0], w[0], *spatial)),)


def call_layer(
    layer: Layer, propagation: int, names: Sequence[str], bias: str = "", accumulate: int = 0
) -> KernelCall:
    """One run of the kernel; `names` are the tensor to compute, then the other two of (outputs, input, weights).
    `layer` is the convolution, `propagation` says which tensor to compute; `bias` is a name or "", `accumulate` the
    outputs that are added to, a bit each."""
    own = layer.kernels.packs and layer.kernels.has(depthwise_kernel.function)
    if layer.depthwise and own and takes_depthwise(layer.axes, layer.groups):
        return depthwise_kernel.call(
            *names,
            bias,
            depthwise_scratch(layer.axes, layer.element, propagation),
            types=(layer.element,),
            params=(propagation, *layer.params()),
            features=depthwise_features(layer.axes, propagation),
            accumulate=accumulate,
        )
    if takes_grouped(layer, propagation):
        return grouped_kernel.call(
            *names,
            bias,
            grouped_scratch(layer, propagation),
            types=(layer.element,),
            params=(propagation, *layer.params()),
            features=grouped_features(layer),
            accumulate=accumulate,
        )
    if takes_winograd(layer, propagation):
        scratch, share = winograd_scratch(layer, propagation)
        return winograd_kernel.call(
            *names,
            bias,
            scratch,
            types=(layer.element,),
            params=(propagation, *(a.before for a in layer.axes), share),
            features=winograd_features(propagation, bias=bool(bias)),
            accumulate=accumulate,
        )
    packs = layer.packs
    return (packed_kernel if packs else conv_kernel).call(
        *names,
        bias,
        layer.packed_scratch(propagation) if packs else layer.scratch(),
        types=(layer.element,),
        params=(propagation, *layer.params()),
        features=layer.features(
            bias=bool(bias),
            exchanged=layer.exchanges(propagation),
            padded=layer.leaves_padding_out(propagation),
            pairs=layer.moves_pairs,
            patches=layer.fills_patches(propagation),
            wide_images=layer.has_wide_images(propagation),
            half_panels=layer.has_half_panels(propagation),
        ),
        accumulate=accumulate,
    )


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    layer = Layer.of(ctx, ctx.shape(0), ctx.shape(1))
    names = (ctx.result(0), ctx.name(0), ctx.name(1))
    return (call_layer(layer, OUTPUT, names, ctx.name(2)),)


def _work(ctx: OpContext) -> Dim:
    return product(ctx.result_shape()) * product(ctx.shape(1)[1:])


def _again(call: Call, ctx: OpContext) -> Call | None:
    """Depthwise convolutions have few multiplications but a long run time."""
    return call if ctx.attribute("group", 1) == 1 else None


def _gradient(b: GradientBuilder) -> Results:
    window = conv_window(b.ctx.attributes, b.ctx.shape(0), b.ctx.shape(1))
    attributes = explicit_pads(b.ctx.attributes, window)
    return tuple(b.many(3, "ConvGrad", b.dy[0], *b.x[:2], domain=MICROSOFT, **attributes)[: len(b.x)])


conv = Op(
    "Conv",
    since=(1, 11, 22),
    infer=_infer,
    reference=reference,
    lower=_lower,
    kernels=LAYER_KERNELS,
    rematerialize=_again,
    flops=_work,
    batched_inputs=first_input,
    channels=channels_of_output,
    cases=conv_cases,
    gradient=_gradient,
)

KERNELS = (conv_kernel, packed_kernel, dequantizing_kernel, dequantizing_packed_kernel)
OPS = (conv,)
