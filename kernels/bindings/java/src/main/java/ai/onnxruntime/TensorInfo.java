package ai.onnxruntime;

import java.util.Arrays;

/** Type and shape of a tensor; -1 is a free dimension. */
public final class TensorInfo {
  public final OnnxJavaType type;
  final long[] shape;

  TensorInfo(OnnxJavaType type, long[] shape) {
    this.type = type;
    this.shape = shape.clone();
  }

  public long[] getShape() {
    return shape.clone();
  }

  public long getNumElements() {
    long count = 1;
    for (long dim : shape) count *= dim;
    return count;
  }

  @Override
  public String toString() {
    return type + Arrays.toString(shape);
  }
}
