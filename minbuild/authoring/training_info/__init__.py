"""Models that carry their own training (ONNX's TrainingInfoProto): made, and turned into TrainingArtifacts.

`to_artifacts` is the entry for reading, `model_builder` for writing. The protobuf messages themselves are handled in
`frontend/onnx`, because only readers and writers import `onnx`.
"""
