"""ONNX models: reading into Graph, rewriting what no device needs (functions, sequences, control flow), and writing."""
