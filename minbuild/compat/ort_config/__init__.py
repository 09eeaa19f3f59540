"""The configuration of ONNX Runtime's own reduced build: read, written, made from artifacts, and checked.

`grammar` reads and writes the file; `effective_graph` and `fusions` imitate ONNX Runtime's graph optimizers, because
its configuration lists the nodes that remain after them. `collect` and `check` are the entries for commands.
"""
