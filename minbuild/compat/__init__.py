"""Interfaces of others: ONNX Runtime's build configuration (`ort_config/`) and its C API, name by name.

Names and formats here are fixed by those projects and follow ONNX Runtime 1.19.2. Nothing here builds or measures.
"""
