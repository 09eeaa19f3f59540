package ai.onnxruntime;

/** Element types by their numbers in ONNX. Java has no halves and no unsigned numbers: those travel as their bits. */
public enum OnnxJavaType {
  FLOAT(1, 4),
  UINT8(2, 1),
  INT8(3, 1),
  UINT16(4, 2),
  INT16(5, 2),
  INT32(6, 4),
  INT64(7, 8),
  BOOL(9, 1),
  FLOAT16(10, 2),
  DOUBLE(11, 8),
  UINT32(12, 4),
  UINT64(13, 8),
  BFLOAT16(16, 2);

  public final int value;
  /** Bytes of an element. */
  public final int size;

  OnnxJavaType(int value, int size) {
    this.value = value;
    this.size = size;
  }

  static OnnxJavaType of(int value) {
    for (OnnxJavaType type : values()) {
      if (type.value == value) return type;
    }
    throw new IllegalArgumentException("there is no element type " + value);
  }
}
