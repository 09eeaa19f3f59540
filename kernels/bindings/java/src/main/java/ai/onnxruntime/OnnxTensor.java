package ai.onnxruntime;

import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** A dense tensor in row-major order. Creating one copies the elements between position and limit of a buffer. */
public final class OnnxTensor extends OnnxTensorLike {
  OnnxTensor(TensorInfo info, ByteBuffer data) {
    super(info, data);
  }

  private static OnnxTensor allocate(OnnxJavaType type, long[] shape, long given) throws OrtException {
    TensorInfo info = new TensorInfo(type, shape);
    if (info.getNumElements() != given) {
      throw new OrtException(info + " has " + info.getNumElements() + " elements, but " + given + " are given");
    }
    ByteBuffer data = ByteBuffer.allocateDirect((int) given * type.size).order(ByteOrder.nativeOrder());
    return new OnnxTensor(info, data);
  }

  public static OnnxTensor createTensor(OrtEnvironment env, FloatBuffer from, long[] shape) throws OrtException {
    OnnxTensor made = allocate(OnnxJavaType.FLOAT, shape, from.remaining());
    made.data.asFloatBuffer().put(from.duplicate());
    return made;
  }

  public static OnnxTensor createTensor(OrtEnvironment env, DoubleBuffer from, long[] shape) throws OrtException {
    OnnxTensor made = allocate(OnnxJavaType.DOUBLE, shape, from.remaining());
    made.data.asDoubleBuffer().put(from.duplicate());
    return made;
  }

  public static OnnxTensor createTensor(OrtEnvironment env, LongBuffer from, long[] shape) throws OrtException {
    OnnxTensor made = allocate(OnnxJavaType.INT64, shape, from.remaining());
    made.data.asLongBuffer().put(from.duplicate());
    return made;
  }

  public static OnnxTensor createTensor(OrtEnvironment env, IntBuffer from, long[] shape) throws OrtException {
    OnnxTensor made = allocate(OnnxJavaType.INT32, shape, from.remaining());
    made.data.asIntBuffer().put(from.duplicate());
    return made;
  }

  public static OnnxTensor createTensor(OrtEnvironment env, ShortBuffer from, long[] shape, OnnxJavaType type)
      throws OrtException {
    OnnxTensor made = allocate(type, shape, from.remaining());
    made.data.asShortBuffer().put(from.duplicate());
    return made;
  }

  /** Elements of any type, in the machine's byte order. */
  public static OnnxTensor createTensor(OrtEnvironment env, ByteBuffer from, long[] shape, OnnxJavaType type)
      throws OrtException {
    if (from.remaining() % type.size != 0) {
      throw new OrtException(from.remaining() + " bytes are no whole number of " + type);
    }
    OnnxTensor made = allocate(type, shape, from.remaining() / type.size);
    made.data.duplicate().put(from.duplicate());
    return made;
  }

  /** A tensor of a number, or of an array of numbers, nested as deep as the tensor has dimensions. */
  public static OnnxTensor createTensor(OrtEnvironment env, Object from) throws OrtException {
    Class<?> kind = from.getClass();
    int rank = 0;
    for (; kind.isArray(); kind = kind.getComponentType()) ++rank;
    long[] shape = new long[rank];
    long count = 1;
    Object row = from;
    for (int axis = 0; axis < rank; ++axis) {
      shape[axis] = Array.getLength(row);
      count *= shape[axis];
      row = shape[axis] > 0 && axis + 1 < rank ? Array.get(row, 0) : null;
      if (row == null) break;
    }
    OnnxTensor made = allocate(typeOf(kind), shape, count);
    made.put(from, 0, made.data.duplicate().order(ByteOrder.nativeOrder()));
    return made;
  }

  private static OnnxJavaType typeOf(Class<?> kind) throws OrtException {
    if (kind == float.class || kind == Float.class) return OnnxJavaType.FLOAT;
    if (kind == double.class || kind == Double.class) return OnnxJavaType.DOUBLE;
    if (kind == long.class || kind == Long.class) return OnnxJavaType.INT64;
    if (kind == int.class || kind == Integer.class) return OnnxJavaType.INT32;
    if (kind == short.class || kind == Short.class) return OnnxJavaType.INT16;
    if (kind == byte.class || kind == Byte.class) return OnnxJavaType.INT8;
    if (kind == boolean.class || kind == Boolean.class) return OnnxJavaType.BOOL;
    throw new OrtException("tensors hold numbers, not " + kind);
  }

  private void put(Object from, int axis, ByteBuffer to) throws OrtException {
    if (axis == info.shape.length) {
      putNumber(from, to);
      return;
    }
    if (Array.getLength(from) != info.shape[axis]) {
      throw new OrtException("the arrays on axis " + axis + " differ in length");
    }
    for (int i = 0; i < info.shape[axis]; ++i) put(Array.get(from, i), axis + 1, to);
  }

  private static void putNumber(Object from, ByteBuffer to) {
    if (from instanceof Float) to.putFloat((Float) from);
    else if (from instanceof Double) to.putDouble((Double) from);
    else if (from instanceof Long) to.putLong((Long) from);
    else if (from instanceof Integer) to.putInt((Integer) from);
    else if (from instanceof Short) to.putShort((Short) from);
    else if (from instanceof Byte) to.put((Byte) from);
    else to.put((byte) ((Boolean) from ? 1 : 0));
  }

  /** The number of a scalar; else an array, nested as deep as the tensor has dimensions. */
  @Override
  public Object getValue() {
    return take(0, getByteBuffer());
  }

  private Object take(int axis, ByteBuffer from) {
    if (axis == info.shape.length) return takeNumber(from);
    int[] dims = new int[info.shape.length - axis];
    for (int i = 0; i < dims.length; ++i) dims[i] = (int) info.shape[axis + i];
    Object array = Array.newInstance(javaType(), dims);
    for (int i = 0; i < dims[0]; ++i) Array.set(array, i, take(axis + 1, from));
    return array;
  }

  private Class<?> javaType() {
    switch (info.type) {
      case FLOAT:
        return float.class;
      case DOUBLE:
        return double.class;
      case BOOL:
        return boolean.class;
      default:
        return info.type.size == 8 ? long.class : info.type.size == 4 ? int.class : info.type.size == 2 ? short.class : byte.class;
    }
  }

  private Object takeNumber(ByteBuffer from) {
    switch (info.type) {
      case FLOAT:
        return from.getFloat();
      case DOUBLE:
        return from.getDouble();
      case BOOL:
        return from.get() != 0;
      default:
        break;
    }
    if (info.type.size == 8) return from.getLong();
    if (info.type.size == 4) return from.getInt();
    if (info.type.size == 2) return from.getShort();
    return from.get();
  }

  /** The elements in the machine's byte order; not a copy. */
  public ByteBuffer getByteBuffer() {
    return data.duplicate().order(ByteOrder.nativeOrder());
  }

  public FloatBuffer getFloatBuffer() {
    return info.type == OnnxJavaType.FLOAT ? getByteBuffer().asFloatBuffer() : null;
  }

  public LongBuffer getLongBuffer() {
    return info.type == OnnxJavaType.INT64 ? getByteBuffer().asLongBuffer() : null;
  }
}
