"""AdamWOptimizer: one pass over all trained parameters."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.model import ElementType, TensorType
from minbuild.ops.definition import BOOL, KernelFunction, Launch, Op, Site

adamw_kernel = KernelFunction(
    "adamw",
    ("p:T=", "m:T=", "v:T=", "g:T", "rate:float", "step:int64"),
    params=("alpha", "beta", "epsilon", "weight_decay", "correct_bias", "adam_mode"),
    types={"T": (ElementType.FLOAT,)},
    features={
        "decay": "weight decay",
        "decay_first": "adam_mode 0: decay before the update",
        "uncorrected": "correct_bias 0: moments as they are",
    },
)


def _infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(BOOL, (1,)),)


def _select(site: Site) -> Sequence[Launch]:
    decay = float(site.attribute("weight_decay", 0.01))
    mode = int(site.attribute("adam_mode", 0))
    corrects = int(site.attribute("correct_bias", 1))
    asked = {"decay": decay != 0, "decay_first": mode == 0, "uncorrected": not corrects}
    rate, step, p, g, m, v = (site.name(i) for i in range(6))
    launch = adamw_kernel.launch(
        p,
        m,
        v,
        g,
        rate,
        step,
        types=(site.element(2),),
        params=(
            float(site.attribute("alpha", 0.9)),
            float(site.attribute("beta", 0.999)),
            float(site.attribute("epsilon", 1e-8)),
            decay,
            corrects,
            mode,
        ),
        features=tuple(name for name, wanted in asked.items() if wanted),
    )
    return (launch,)


adamw = Op(
    "AdamWOptimizer",
    domain="com.microsoft",
    infer=_infer,
    select=_select,
    updates={2: None, 4: None, 5: None},
)
