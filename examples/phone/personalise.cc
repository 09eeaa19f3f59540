// Adapts a digit classifier to the handwriting of one user, and survives being killed at any time.
//
//   personalise PACKAGE CHECKPOINT [EPOCHS]
//
// CHECKPOINT is where the user's version is kept: it is written after each epoch, and if it is there already, training
// goes on from it. EPOCHS limits how many epochs this run trains, as a charger that is unplugged would.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "trainer.hpp"

namespace {

constexpr int32_t kPixels = 64, kClasses = 10;
constexpr size_t kBatch = 8;
constexpr int kEpochs = 30;

struct Digits {
  std::vector<float> pixels;  // [size, kPixels]
  std::vector<int64_t> labels;
  size_t size() const { return labels.size(); }
};

bool read(const char* path, Digits& digits) {
  std::FILE* file = std::fopen(path, "rb");
  int32_t count = 0, label = 0;
  bool well = file != nullptr && std::fread(&count, sizeof count, 1, file) == 1 && count > 0;
  if (well) digits = {std::vector<float>(static_cast<size_t>(count) * kPixels), std::vector<int64_t>(static_cast<size_t>(count))};
  for (size_t i = 0; well && i < digits.size(); ++i) {
    well = std::fread(&label, sizeof label, 1, file) == 1 &&
           std::fread(&digits.pixels[i * kPixels], sizeof(float), kPixels, file) == kPixels;
    digits.labels[i] = label;
  }
  if (file != nullptr) std::fclose(file);
  if (!well) std::fprintf(stderr, "%s: cannot be read; prepare.py writes it\n", path);
  return well;
}

// A batch that is gathered, so that every epoch can have an order of its own.
struct Batch {
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  void add(const Digits& from, size_t i) {
    pixels.insert(pixels.end(), &from.pixels[i * kPixels], &from.pixels[i * kPixels] + kPixels);
    labels.push_back(from.labels[i]);
  }
};

template <class Step>
minbuild::Status run(Batch& batch, Step step) {
  const auto count = static_cast<int32_t>(batch.labels.size());
  const mb_tensor inputs[] = {minbuild::tensor(batch.pixels, {count, kPixels}), minbuild::tensor(batch.labels, {count})};
  return step(inputs);
}

// The order of an epoch follows from its number, so that a run that was cut in two trains exactly as one that was not.
std::vector<size_t> order_of(int64_t epoch, size_t count) {
  std::vector<size_t> order(count);
  auto state = static_cast<uint32_t>(epoch) * 2654435761u + 1;
  for (size_t i = 0; i < count; ++i) order[i] = i;
  for (size_t i = count; i > 1; --i) {
    state = state * 1664525u + 1013904223u;
    std::swap(order[i - 1], order[(state >> 8) % i]);
  }
  return order;
}

minbuild::Status train_epoch(minbuild::Session& session, const Digits& digits, int64_t epoch) {
  const std::vector<size_t> order = order_of(epoch, digits.size());
  for (size_t first = 0; first < order.size(); first += kBatch) {
    Batch batch;
    for (size_t i = first; i < std::min(first + kBatch, order.size()); ++i) batch.add(digits, order[i]);
    auto status = run(batch, [&](minbuild::Span<const mb_tensor> inputs) { return session.train_step(inputs); });
    if (status) status = session.optimizer_step();
    if (!status) return status;
    session.lazy_reset_grad();
  }
  return {MB_OK, ""};
}

// How many digits get the highest score for their own class. Outputs of evaluation: the loss, then scores [count, 10].
minbuild::Status judge(minbuild::Session& session, const Digits& digits, size_t& right) {
  right = 0;
  for (size_t first = 0; first < digits.size(); first += kBatch) {
    Batch batch;
    for (size_t i = first; i < std::min(first + kBatch, digits.size()); ++i) batch.add(digits, i);
    auto status = run(batch, [&](minbuild::Span<const mb_tensor> inputs) { return session.eval_step(inputs); });
    if (!status) return status;
    auto output = session.outputs(MB_EVAL).begin();
    const auto scores = minbuild::elements_of<const float>((*++output).value);
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      const float* row = scores.data() + i * kClasses;
      right += std::max_element(row, row + kClasses) - row == batch.labels[i];
    }
  }
  return {MB_OK, ""};
}

bool exists(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file != nullptr) std::fclose(file);
  return file != nullptr;
}

int fail(const char* text) {
  std::fprintf(stderr, "%s\n", text);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fail("usage: personalise PACKAGE CHECKPOINT [EPOCHS]");
  const std::string model = std::string(argv[1]) + "/model/", shipped = model + "checkpoint";
  const char* own = argv[2];
  const int64_t limit = argc > 3 ? std::atoi(argv[3]) : kEpochs;
  Digits few, held;
  if (!read("user-few.bin", few) || !read("user-held.bin", held)) return 1;

  minbuild::Session session;
  mb_options options = {};
  const char* from = exists(own) ? own : shipped.c_str();
  if (auto status = minbuild::Session::open((model + "trainer.plan").c_str(), from, options, session); !status)
    return fail(status.text());
  if (auto status = session.set_learning_rate(0.01f); !status) return fail(status.text());

  // The checkpoint counts optimizer steps, which is how a run knows where the one before it stopped.
  const auto steps = static_cast<int64_t>((few.size() + kBatch - 1) / kBatch);
  const int64_t first = session.step_count() / steps, last = std::min<int64_t>(kEpochs, first + limit);
  size_t right = 0;
  if (auto status = judge(session, held, right); !status) return fail(status.text());
  std::printf("after epoch %d: %zu of %zu right\n", static_cast<int>(first), right, held.size());
  const size_t before = right;
  for (int64_t epoch = first; epoch < last; ++epoch) {
    if (auto status = train_epoch(session, few, epoch); !status) return fail(status.text());
    // Replaces the file in one step: a power cut leaves the old version or the new one.
    if (auto status = session.save_checkpoint(own, true); !status) return fail(status.text());
  }
  if (auto status = judge(session, held, right); !status) return fail(status.text());
  std::printf("after epoch %d: %zu of %zu right\n", static_cast<int>(last), right, held.size());
  return first == 0 && last == kEpochs && right <= before ? fail("it did not learn") : 0;
}
