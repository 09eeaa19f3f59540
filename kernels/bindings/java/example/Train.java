import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.OrtTrainingSession;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/**
 * Trains an image classifier of this package, such as LeNet, on made-up images: class k is a bright square at place k.
 * Arguments: the package's folder and the number of steps.
 */
public final class Train {
  private static final int BATCH = 8;
  private static final int CLASSES = 10;
  private static int state = 1;

  private Train() {}

  /** 24 random bits, the same on every machine. */
  private static int randomBits() {
    state = state * 1664525 + 1013904223;
    return state >>> 8;
  }

  private static Map<String, OnnxTensor> makeBatch(OrtEnvironment env, OrtTrainingSession session) throws Exception {
    Iterator<String> names = session.getTrainInputNames().iterator();
    String images = names.next();
    String labels = names.next();
    long[] shape = session.getTrainInputInfo(images).getShape();
    int channels = (int) shape[1];
    int side = (int) shape[2];
    int square = side / 5;
    float[] pixels = new float[BATCH * channels * side * side];
    long[] classes = new long[BATCH];
    for (int i = 0; i < pixels.length; ++i) pixels[i] = randomBits() / 16777216f;
    for (int n = 0; n < BATCH; ++n) {
      int k = randomBits() % CLASSES;
      classes[n] = k;
      for (int c = 0; c < channels; ++c) {
        for (int y = 0; y < square; ++y) {
          for (int x = 0; x < square; ++x) {
            int row = k / 5 * 2 * square + y;
            int column = k % 5 * square + x;
            pixels[((n * channels + c) * side + row) * side + column] += 2;
          }
        }
      }
    }
    shape[0] = BATCH;
    Map<String, OnnxTensor> batch = new HashMap<>();
    batch.put(images, OnnxTensor.createTensor(env, FloatBuffer.wrap(pixels), shape));
    batch.put(labels, OnnxTensor.createTensor(env, LongBuffer.wrap(classes), new long[] {BATCH}));
    return batch;
  }

  public static void main(String[] arguments) throws Exception {
    String model = (arguments.length > 0 ? arguments[0] : ".") + "/model/";
    int steps = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 60;
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    String plan = model + "trainer.plan"; // not there where it is compiled in
    if (!new java.io.File(plan).exists()) plan = null;
    try (OrtTrainingSession session =
        env.createTrainingSession(model + "checkpoint", plan, null, null)) {
      session.registerLinearLRScheduler(5, 2L * steps, 0.002f);
      for (int step = 0; step < steps; ++step) {
        try (OrtSession.Result outputs = session.trainStep(makeBatch(env, session))) {
          OnnxValue loss = outputs.get(0);
          System.out.println(loss.getValue());
        }
        session.optimizerStep();
        session.lazyResetGrad();
        session.schedulerStep();
      }
      session.saveCheckpoint(Paths.get("trained.checkpoint"), true);
    }
  }
}
