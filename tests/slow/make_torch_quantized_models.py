"""Models that torchao quantizes and torch exports as pairs of QuantizeLinear and DequantizeLinear, for
measure_packed_weights.py.

    PYTHON tests/slow/make_torch_quantized_models.py FOLDER

PYTHON is an interpreter with torch, onnxscript and torchao.
"""

import sys
from collections import OrderedDict

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

folder = sys.argv[1]
torch.manual_seed(0)
mlp = nn.Sequential(
    OrderedDict(
        fc0=nn.Linear(784, 512),
        relu0=nn.ReLU(),
        fc1=nn.Linear(512, 256),
        relu1=nn.ReLU(),
        fc2=nn.Linear(256, 10),
    )
)
layers: OrderedDict[str, nn.Module] = OrderedDict()
for i, (channels, filters) in enumerate(((1, 16), (16, 32), (32, 64))):
    layers[f"conv{i}"] = nn.Conv2d(channels, filters, 3, 2, 1)
    layers[f"relu{i}"] = nn.ReLU()
layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": nn.Linear(64, 10)}
cnn = nn.Sequential(layers)

for name, model, shape in (("mlp", mlp, (784,)), ("cnn", cnn, (1, 28, 28))):
    config = get_default_x86_inductor_quantization_config()
    quantizer = X86InductorQuantizer().set_global(config)
    if name == "cnn":  # the head trains
        quantizer.set_module_name_qconfig("head", None)
    x = torch.randn(8, *shape)
    sizes = ({0: torch.export.Dim("batch", min=2, max=512)},)
    prepared = prepare_pt2e(torch.export.export(model.eval(), (x,), dynamic_shapes=sizes).module(), quantizer)
    for _ in range(4):
        prepared(torch.randn(8, *shape))
    program = torch.onnx.export(convert_pt2e(prepared), (x,), dynamo=True, dynamic_shapes=sizes)
    program.save(f"{folder}/{name}_torch.onnx", external_data=False)
