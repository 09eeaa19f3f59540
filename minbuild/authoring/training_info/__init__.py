"""Models that carry their own training (ONNX's TrainingInfoProto): made, and turned into TrainingArtifacts."""
