// Makes every mistake with a batch, and prints the words of each refusal.
import ai.onnxruntime.*;
import java.nio.*;
import java.util.*;

public class Refusals {
  static final OrtEnvironment env = OrtEnvironment.getEnvironment();

  interface Call { void make() throws Exception; }

  static void refused(Call call) throws Exception {
    try {
      call.make();
    } catch (OrtException error) {
      System.out.println(error.getCode() + " " + error.getMessage());
      return;
    }
    throw new AssertionError("it was not refused");
  }

  static Map<String, OnnxTensor> batch(OnnxTensor image, long... labels) throws Exception {
    Map<String, OnnxTensor> batch = new HashMap<>();
    batch.put("input", image);
    batch.put("labels", OnnxTensor.createTensor(env, LongBuffer.wrap(labels), new long[] {labels.length}));
    return batch;
  }

  static OnnxTensor image(int count, int side) throws Exception {
    return OnnxTensor.createTensor(env, FloatBuffer.allocate(count * 28 * side), new long[] {count, 1, 28, side});
  }

  public static void main(String[] arguments) throws Exception {
    String model = "../../model/";
    OrtTrainingSession session = env.createTrainingSession(model + "checkpoint", model + "trainer.plan", "", "");
    OnnxTensor doubles = OnnxTensor.createTensor(env, DoubleBuffer.allocate(2 * 784), new long[] {2, 1, 28, 28});
    refused(() -> session.trainStep(batch(doubles, 0, 0)));
    refused(() -> session.trainStep(batch(image(2, 27), 0, 0)));
    refused(() -> session.trainStep(batch(image(2, 28), 0, 0, 0)));
    refused(() -> session.trainStep(batch(image(0, 28))));
    refused(() -> session.trainStep(batch(image(4, 28), 0, 9, 1, 10)));
    OrtSession.SessionOptions four = new OrtSession.SessionOptions();
    four.setLargestSizes(4);
    OrtTrainingSession small = env.createTrainingSession(model + "checkpoint", model + "trainer.plan", "", "", four);
    refused(() -> small.trainStep(batch(image(5, 28), 0, 0, 0, 0, 0)));
    refused(() -> session.trainStep(batch(image(33, 28), new long[33])));
    refused(() -> session.evalStep(batch(image(1, 28), -1)));
    session.trainStep(batch(image(2, 28), 0, 0)); // the session goes on
  }
}
