// Trains an image classifier of this package, such as LeNet, on made-up images: class k is a bright square at place k.
//
//   train [FOLDER [STEPS]]     FOLDER is that of the package
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "trainer.hpp"

namespace {

constexpr int32_t kBatch = 8;
constexpr int32_t kClasses = 10;

struct Batch {
  std::vector<float> images;  // [kBatch, channels, side, side]
  std::vector<int64_t> labels;
  int32_t channels, side;
};

// 24 random bits, the same on every machine.
uint32_t random_bits() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

void fill(Batch& batch) {
  const int32_t side = batch.side, square = side / 5;
  for (float& pixel : batch.images) pixel = static_cast<float>(random_bits()) / 16777216.0f;
  for (int32_t n = 0; n < kBatch; ++n) {
    const int32_t label = static_cast<int32_t>(random_bits() % kClasses);
    batch.labels[static_cast<size_t>(n)] = label;
    for (int32_t c = 0; c < batch.channels; ++c)
      for (int32_t y = 0; y < square; ++y)
        for (int32_t x = 0; x < square; ++x) {
          const int32_t row = label / 5 * 2 * square + y, column = label % 5 * square + x;
          batch.images[static_cast<size_t>(((n * batch.channels + c) * side + row) * side + column)] += 2.0f;
        }
  }
}

int fail(const minbuild::Status& status) {
  std::fprintf(stderr, "%s\n", status.text());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = std::string(argc > 1 ? argv[1] : ".") + "/model/";
  const int steps = argc > 2 ? std::atoi(argv[2]) : 60;

  minbuild::Session session;
  mb_options options = {};
  const std::string plan = model + "trainer.plan";  // not there where it is compiled in
  std::FILE* const file = std::fopen(plan.c_str(), "rb");
  if (file != nullptr) std::fclose(file);
  if (auto status =
          minbuild::Session::open(file ? plan.c_str() : nullptr, (model + "checkpoint").c_str(), options, session);
      !status)
    return fail(status);

  const mb_tensor image = (*session.inputs().begin()).value;  // [batch, channels, side, side]
  Batch batch = {{}, std::vector<int64_t>(kBatch), image.dims[1], image.dims[2]};
  batch.images.resize(static_cast<size_t>(kBatch * batch.channels * batch.side * batch.side));
  const mb_tensor inputs[] = {
      minbuild::tensor(batch.images, {kBatch, batch.channels, batch.side, batch.side}),
      minbuild::tensor(batch.labels, {kBatch}),
  };

  minbuild::LinearSchedule schedule(session, 5, 2 * steps, 0.002f);
  for (int step = 0; step < steps; ++step) {
    fill(batch);
    if (auto status = session.train_step(inputs); !status) return fail(status);
    std::printf("%.6f\n", static_cast<double>(session.loss()));
    if (auto status = session.optimizer_step(); !status) return fail(status);
    session.lazy_reset_grad();
    schedule.step();
  }
  if (auto status = session.save_checkpoint("trained.checkpoint", true); !status) return fail(status);
  return 0;
}
