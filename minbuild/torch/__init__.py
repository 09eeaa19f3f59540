"""From a PyTorch module to a trainer: `minbuild.torch.reduce`, and back with `copy_parameters`.

Nothing here imports torch by itself: `minbuild.frontend.pytorch` does, when a module is read.
"""

from __future__ import annotations

from minbuild.torch.from_module import copy_parameters, reduce

__all__ = ["copy_parameters", "reduce"]
