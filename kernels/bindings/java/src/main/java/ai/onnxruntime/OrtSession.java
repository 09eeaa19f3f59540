package ai.onnxruntime;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/** What belongs to sessions of any kind. */
public final class OrtSession {
  private OrtSession() {}

  /** The outputs of a step, by name and in order. They are copies, so they outlast the next step. */
  public static final class Result implements AutoCloseable, Iterable<Map.Entry<String, OnnxValue>> {
    private final Map<String, OnnxValue> values;

    Result(LinkedHashMap<String, OnnxValue> values) {
      this.values = values;
    }

    public OnnxValue get(int index) {
      return values.values().stream().skip(index).findFirst().orElseThrow(IndexOutOfBoundsException::new);
    }

    public Optional<OnnxValue> get(String name) {
      return Optional.ofNullable(values.get(name));
    }

    public int size() {
      return values.size();
    }

    @Override
    public Iterator<Map.Entry<String, OnnxValue>> iterator() {
      return values.entrySet().iterator();
    }

    @Override
    public void close() {}
  }

  /** How to make a session. */
  public static final class SessionOptions implements AutoCloseable {
    int[] sizes;

    /** Largest sizes of the free dimensions, in plan order; without, those the package was made with. */
    public void setLargestSizes(int... sizes) {
      this.sizes = sizes.clone();
    }

    @Override
    public void close() {}
  }
}
