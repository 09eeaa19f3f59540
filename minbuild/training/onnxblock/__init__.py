"""Losses and optimizers of one's own, put together from blocks: in the shape of `onnxruntime.training.onnxblock`.

Class and argument names follow ONNX Runtime 1.19.2 and are a promise to users. A new loss is a class in `loss`, a new
building block one in `blocks`.

class Weighted(onnxblock.Block):
    def __init__(self):
        super().__init__()
        self.mse, self.l1 = onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss()
        self.half, self.mul, self.add = onnxblock.blocks.Constant(0.5), onnxblock.blocks.Mul(), onnxblock.blocks.Add()

    def build(self, output):
        return self.add(self.mul(self.half(), self.mse(output)), self.mul(self.half(), self.l1(output)))

artifacts.generate_artifacts("model.onnx", loss=Weighted(), optimizer=artifacts.OptimType.AdamW)
"""

from minbuild.training.onnxblock import blocks, loss, optim
from minbuild.training.onnxblock.blocks import Block
from minbuild.training.onnxblock.checkpoints import load_checkpoint_to_model, save_checkpoint
from minbuild.training.onnxblock.context import base, custom_op_library, empty_base
from minbuild.training.onnxblock.models import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
