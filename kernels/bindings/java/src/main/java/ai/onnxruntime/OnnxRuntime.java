package ai.onnxruntime;

import java.nio.ByteBuffer;

/** The functions of minbuild_jni.c. A session is the address of an mb_session; lists are numbered as by mb_get. */
final class OnnxRuntime {
  static final int TRAIN = 0;
  static final int TRAIN_AND_UPDATE = 4;
  static final int EVAL = 1;
  static final int OPTIMIZER = 2;
  static final int INITIALIZE = 3;
  static final int INPUTS = 0;
  static final int OUTPUTS = 1;
  static final int PARAMETERS = 4;

  static {
    System.loadLibrary("minbuild_jni");
  }

  private OnnxRuntime() {}

  static native long create(String plan, String checkpoint, int[] sizes) throws OrtException;

  static native void destroy(long session);

  /** `sizes` are those that the session was created with, null for none: an error names one that is too small. */
  static native void run(long session, int graph, ByteBuffer[] data, int[] types, int[][] dims, int[] sizes)
      throws OrtException;

  static native String[] names(long session, int list);

  /** The type, then the dimensions. */
  static native int[] describe(long session, int list, int index);

  /** The value in place, valid until the next step. */
  static native ByteBuffer value(long session, int list, int index);

  static native void lazyResetGrad(long session);

  static native float learningRate(long session);

  static native void setLearningRate(long session, float rate) throws OrtException;

  static native long stepCount(long session);

  static native void setSeed(long session, long seed);

  static native void saveCheckpoint(long session, String path, boolean optimizer) throws OrtException;

  /** True if frozen parameters are read from these bytes, which have to stay then. */
  static native boolean loadCheckpoint(long session, ByteBuffer bytes, boolean any) throws OrtException;

  static native void exportModel(long session, String template, String path) throws OrtException;

  static native void setProperty(long session, String name, int type, long integer, float real, String text)
      throws OrtException;

  /** A Long, a Float or a String; null where there is none. */
  static native Object property(long session, String name) throws OrtException;

  static native long parametersSize(long session, boolean trainableOnly) throws OrtException;

  static native void copyParameters(long session, ByteBuffer floats, boolean trainableOnly, boolean toSession)
      throws OrtException;
}
