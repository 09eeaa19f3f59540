// A program for ONNX Runtime's C++ interface, onnxruntime_training_cxx_api.h: the same as train.c, as its users write it.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "onnxruntime_training_cxx_api.h"

int main(int, char** argv) {
  const std::string folder = argv[1];
  const int steps = std::atoi(argv[3]);
  try {
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "test");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    options.SetGraphOptimizationLevel(GraphOptimizationLevel::ORT_ENABLE_ALL);
    Ort::CheckpointState state = Ort::CheckpointState::LoadCheckpoint(folder + "/checkpoint");
    Ort::TrainingSession session(env, options, state, folder + "/training_model.onnx", folder + "/eval_model.onnx",
                                 folder + "/optimizer_model.onnx");
    session.SetLearningRate(static_cast<float>(std::atof(argv[4])));
    std::printf("inputs");
    for (const std::string& name : session.InputNames(true)) std::printf(" %s", name.c_str());
    std::printf("\n");

    std::ifstream file(argv[2], std::ios::binary);
    auto read = [&](void* to, size_t size) { file.read(static_cast<char*>(to), static_cast<std::streamsize>(size)); };
    int32_t batches = 0;
    read(&batches, sizeof batches);
    Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<std::vector<char>> data;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<int32_t> types;
    for (size_t i = 0; i < session.InputNames(true).size(); ++i) {
      int32_t head[2];
      read(head, sizeof head);
      types.push_back(head[0]);
      shapes.emplace_back(static_cast<size_t>(head[1]));
      read(shapes.back().data(), shapes.back().size() * sizeof(int64_t));
      size_t bytes = head[0] == 1 || head[0] == 6 ? 4 : 8;
      for (int64_t dim : shapes.back()) bytes *= static_cast<size_t>(dim);
      data.emplace_back(bytes * static_cast<size_t>(batches));
      read(data.back().data(), data.back().size());
    }
    auto batch = [&](int number) {
      std::vector<Ort::Value> values;
      for (size_t i = 0; i < data.size(); ++i) {
        const size_t bytes = data[i].size() / static_cast<size_t>(batches);
        values.push_back(Ort::Value::CreateTensor(memory, data[i].data() + bytes * static_cast<size_t>(number), bytes,
                                                  shapes[i].data(), shapes[i].size(),
                                                  static_cast<ONNXTensorElementDataType>(types[i])));
      }
      return values;
    };
    for (int step = 0; step < steps; ++step) {
      std::vector<Ort::Value> outputs = session.TrainStep(batch(step));
      std::printf("loss %.9g\n", static_cast<double>(*outputs.front().GetTensorData<float>()));
      session.OptimizerStep();
      session.LazyResetGrad();
    }
    std::printf("eval %.9g\n", static_cast<double>(*session.EvalStep(batch(steps - 1)).front().GetTensorData<float>()));
    Ort::Value all = session.ToBuffer(true);
    session.FromBuffer(all);
    std::printf("parameters %d\n", static_cast<int>(all.GetTensorTypeAndShapeInfo().GetElementCount()));
    state.AddProperty("who", Ort::Property(std::string("somebody")));
    Ort::CheckpointState::SaveCheckpoint(state, "saved", true);
    std::printf("property %s\n", std::get<std::string>(state.GetProperty("who")).c_str());
    session.RegisterLinearLRScheduler(8, 16, 0.5f);
    session.SchedulerStep();
    std::printf("scheduled %g\n", static_cast<double>(session.GetLearningRate()));
    if (argv[5] != nullptr) session.ExportModelForInferencing("exported.onnx", {argv[5]});
    try {
      Ort::Session inference(env, "none.onnx", options);
    } catch (const Ort::Exception& refused) {
      std::printf("refused %d: %s\n", static_cast<int>(refused.GetOrtErrorCode()), refused.what());
    }
  } catch (const Ort::Exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  return 0;
}
