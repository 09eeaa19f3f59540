package ai.onnxruntime;

/** Where sessions come from. It holds nothing: trainers share no state. */
public final class OrtEnvironment implements AutoCloseable {
  private static final OrtEnvironment THE_ONE = new OrtEnvironment();

  private OrtEnvironment() {}

  public static OrtEnvironment getEnvironment() {
    return THE_ONE;
  }

  /**
   * A session of a package: its trainer.plan as `trainPath`, null where the library has it compiled in, and a
   * checkpoint. Evaluation and optimizer are part of the plan: their paths are there for calls written for ONNX Runtime
   * and not read.
   */
  public OrtTrainingSession createTrainingSession(
      String checkpointPath, String trainPath, String evalPath, String optimizerPath) throws OrtException {
    return createTrainingSession(checkpointPath, trainPath, evalPath, optimizerPath, new OrtSession.SessionOptions());
  }

  public OrtTrainingSession createTrainingSession(
      String checkpointPath,
      String trainPath,
      String evalPath,
      String optimizerPath,
      OrtSession.SessionOptions options)
      throws OrtException {
    return new OrtTrainingSession(trainPath, checkpointPath, options.sizes);
  }

  @Override
  public void close() {}
}
