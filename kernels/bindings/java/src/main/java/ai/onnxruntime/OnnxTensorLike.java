package ai.onnxruntime;

import java.nio.ByteBuffer;

/** A value with a type and a shape; its memory is the tensor's own and needs no closing. */
public abstract class OnnxTensorLike implements OnnxValue {
  final TensorInfo info;
  final ByteBuffer data; // direct, in the machine's byte order

  OnnxTensorLike(TensorInfo info, ByteBuffer data) {
    this.info = info;
    this.data = data;
  }

  public TensorInfo getInfo() {
    return info;
  }

  @Override
  public void close() {}
}
