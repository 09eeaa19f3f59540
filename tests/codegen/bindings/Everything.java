// Calls everything there is in the Java binding.
import ai.onnxruntime.*;
import java.nio.*;
import java.nio.file.*;
import java.util.*;

public class Everything {
  static void must(boolean holds) { if (!holds) throw new AssertionError(); }

  public static void main(String[] arguments) throws Exception {
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    String model = "../../model/";
    OrtTrainingSession.setSeed(3);
    OrtTrainingSession session = env.createTrainingSession(model + "checkpoint", model + "trainer.plan", "", "");
    Map<String, OnnxTensor> batch = new HashMap<>();
    batch.put("input", OnnxTensor.createTensor(env, new float[2][1][28][28]));
    batch.put("labels", OnnxTensor.createTensor(env, new long[] {1, 2}));
    float loss = (float) session.evalStep(batch).get(0).getValue();
    must(loss == (float) session.trainStep(batch, session.getTrainOutputNames()).get(0).getValue());
    session.optimizerStep();
    session.lazyResetGrad();
    session.addProperty("epoch", 3);
    session.addProperty("best", 0.5f);
    session.addProperty("who", "grün");
    must(session.getIntProperty("epoch") == 3 && session.getFloatProperty("best") == 0.5f);
    must(session.getStringProperty("who").equals("grün"));
    FloatBuffer all = session.getContiguousParameters(true);
    must(all.remaining() == session.getParametersSize(true));
    all.put(5, 9);
    session.copyBufferToParameters(all, true);
    OnnxTensor weight = session.getParameter("conv1.weight");
    must(weight.getFloatBuffer().get(5) == 9 && ((float[][][][]) weight.getValue())[0][0][1][0] == 9);
    session.setLearningRate(0.25f);
    session.saveCheckpoint(Paths.get("all.checkpoint"), true);
    session.updateParameter("conv1.weight", OnnxTensor.createTensor(env, new float[6][1][5][5]));
    byte[] checkpoint = Files.readAllBytes(Paths.get("all.checkpoint"));
    session.loadCheckpoint(checkpoint);
    must(session.getParameter("conv1.weight").getFloatBuffer().get(5) == 9);
    OrtTrainingSession other = env.createTrainingSession("all.checkpoint", model + "trainer.plan", "", "");
    must(other.getIntProperty("epoch") == 3 && other.getLearningRate() == 0.25f);
    session.exportModelForInference(Paths.get(model + "inference.template"), Paths.get("out.onnx"));
    checkpoint[checkpoint.length - 1] ^= 1; // what another model's fingerprint changes
    refuses(4, () -> session.loadCheckpoint(checkpoint));
    session.loadCheckpoint(checkpoint, true);
    checkpoint[99] ^= 1;
    refuses(4, () -> session.loadCheckpoint(checkpoint, true));
    refuses(7, () -> session.setLearningRate(Float.NaN));
    must(session.getLearningRate() == 0.25f);
    refuses(6, () -> session.trainStep(wrong(env, batch)));
    refuses(1, () -> session.trainStep(new HashMap<>()));
    refuses(1, () -> session.getIntProperty("who"));
    refuses(8, () -> env.createTrainingSession("none", model + "trainer.plan", "", ""));
    session.close();
    other.close();
    try {
      session.optimizerStep();
      must(false);
    } catch (IllegalStateException closed) {
      System.out.println("all is well");
    }
  }

  static Map<String, OnnxTensor> wrong(OrtEnvironment env, Map<String, OnnxTensor> batch) throws OrtException {
    Map<String, OnnxTensor> other = new HashMap<>(batch);
    other.put("input", OnnxTensor.createTensor(env, new float[] {1, 2}));
    return other;
  }

  interface Call { void make() throws Exception; }

  static void refuses(int code, Call call) throws Exception {
    try {
      call.make();
    } catch (OrtException refused) {
      if (refused.getCode() == code && !refused.getMessage().isEmpty()) return;
      throw refused;
    }
    must(false);
  }
}
