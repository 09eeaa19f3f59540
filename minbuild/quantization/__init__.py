"""Quantisation after training: an exported model in float becomes one with 8-bit products, QuantizeLinear and
DequantizeLinear around them.

`calibration` reads and checks the data that ranges are taken of, `ranges` turns values into scales and zero points,
`layers` finds the products by constant weights, `pairs` writes them, and `mixed_precision` chooses those that stay.
"""
