package ai.onnxruntime;

/** A call that the trainer refused; the code is an mb_status of trainer.h. */
public class OrtException extends Exception {
  private static final long serialVersionUID = 1L;
  private final int code;

  public OrtException(String text) {
    this(1, text);
  }

  /** Called by the native code as well. */
  public OrtException(int code, String text) {
    super(text);
    this.code = code;
  }

  public int getCode() {
    return code;
  }
}
