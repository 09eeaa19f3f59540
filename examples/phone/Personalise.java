import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.OrtTrainingSession;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;

/**
 * Adapts a digit classifier to the handwriting of one user, as personalise.cc does: the same batches in the same order, hence the same
 * checkpoint, byte for byte.
 *
 * <p>Arguments: the package's folder, and the file that keeps the user's version.
 */
public final class Personalise {
  private static final int PIXELS = 64;
  private static final int CLASSES = 10;
  private static final int BATCH = 8;
  private static final int EPOCHS = 30;

  private final OrtEnvironment env = OrtEnvironment.getEnvironment();
  private final OrtTrainingSession session;

  private Personalise(String model, String checkpoint) throws OrtException {
    session = env.createTrainingSession(checkpoint, new File(model, "trainer.plan").getPath(), null, null);
  }

  /** The digits of a file that prepare.py wrote. */
  private static final class Digits {
    final float[][] pixels;
    final long[] labels;

    Digits(String path) throws IOException {
      ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Paths.get(path))).order(ByteOrder.LITTLE_ENDIAN);
      int count = bytes.getInt();
      pixels = new float[count][PIXELS];
      labels = new long[count];
      for (int i = 0; i < count; ++i) {
        labels[i] = bytes.getInt();
        for (int k = 0; k < PIXELS; ++k) pixels[i][k] = bytes.getFloat();
      }
    }

    int size() {
      return labels.length;
    }
  }

  /** The order of an epoch follows from its number; the same numbers as in C++, whose are unsigned. */
  private static int[] orderOf(int epoch, int count) {
    int[] order = new int[count];
    int state = epoch * (int) 2654435761L + 1;
    for (int i = 0; i < count; ++i) order[i] = i;
    for (int i = count; i > 1; --i) {
      state = state * 1664525 + 1013904223;
      int other = (state >>> 8) % i;
      int kept = order[i - 1];
      order[i - 1] = order[other];
      order[other] = kept;
    }
    return order;
  }

  /** At most BATCH digits from `first` on, in an order. */
  private Map<String, OnnxTensor> batch(Digits digits, int[] order, int first) throws OrtException {
    int count = Math.min(BATCH, order.length - first);
    FloatBuffer pixels = FloatBuffer.allocate(count * PIXELS);
    LongBuffer labels = LongBuffer.allocate(count);
    for (int i = first; i < first + count; ++i) {
      pixels.put(digits.pixels[order[i]]);
      labels.put(digits.labels[order[i]]);
    }
    pixels.rewind();
    labels.rewind();
    return Map.of(
        "image", OnnxTensor.createTensor(env, pixels, new long[] {count, PIXELS}),
        "labels", OnnxTensor.createTensor(env, labels, new long[] {count}));
  }

  private void train(Digits digits, int epoch) throws OrtException {
    int[] order = orderOf(epoch, digits.size());
    for (int first = 0; first < order.length; first += BATCH) {
      session.trainStep(batch(digits, order, first)).close();
      session.optimizerStep();
      session.lazyResetGrad();
    }
  }

  /** The number of digits whose own class gets the highest score. Outputs of evaluation: the loss, then scores [count, 10]. */
  private int judge(Digits digits) throws OrtException {
    int[] order = new int[digits.size()];
    for (int i = 0; i < order.length; ++i) order[i] = i;
    int right = 0;
    for (int first = 0; first < order.length; first += BATCH) {
      try (OrtSession.Result outputs = session.evalStep(batch(digits, order, first))) {
        float[][] scores = (float[][]) outputs.get(1).getValue();
        for (int i = 0; i < scores.length; ++i) {
          int best = 0;
          for (int k = 1; k < CLASSES; ++k) if (scores[i][k] > scores[i][best]) best = k;
          if (best == digits.labels[first + i]) ++right;
        }
      }
    }
    return right;
  }

  public static void main(String[] arguments) throws Exception {
    String model = new File(arguments[0], "model").getPath();
    Digits few = new Digits("user-few.bin");
    Digits held = new Digits("user-held.bin");
    Personalise own = new Personalise(model, new File(model, "checkpoint").getPath());
    own.session.setLearningRate(0.01f);
    System.out.printf("after epoch 0: %d of %d right%n", own.judge(held), held.size());
    for (int epoch = 0; epoch < EPOCHS; ++epoch) own.train(few, epoch);
    own.session.saveCheckpoint(Paths.get(arguments[1]), true);
    own.session.close();

    own = new Personalise(model, arguments[1]); // as after the app was started anew
    System.out.printf("after epoch %d: %d of %d right%n", EPOCHS, own.judge(held), held.size());
    own.session.close();
  }
}
