package ai.onnxruntime;

/** What goes into a step and comes out of it. */
public interface OnnxValue extends AutoCloseable {
  Object getValue() throws OrtException;

  @Override
  void close();
}
