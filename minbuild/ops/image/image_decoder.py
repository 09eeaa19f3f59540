"""ImageDecoder: compressed images have no place on the device."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import TensorType
from minbuild.ops.core.definition import Op, OpContext, UnsupportedUse


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    raise UnsupportedUse(
        "images are decoded by whoever feeds the trainer. Make the decoded image an input of the model"
    )


image_decoder = Op("ImageDecoder", since=(20,), infer=_infer)

OPS = (image_decoder,)
