"""Operators on quantised values as float operators between pairs of QuantizeLinear and DequantizeLinear.

ONNX Runtime's quantizer writes models in three forms. The other two become the one with pairs here, in which gradients
flow, adapters stand beside layers, and weights stay packed.
"""
