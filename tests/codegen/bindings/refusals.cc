// Makes every mistake with a batch, and prints the words of each refusal.
#include <cstdio>
#include <utility>
#include <vector>

#include "trainer.hpp"

namespace {

minbuild::Session create(const int32_t* sizes) {
  minbuild::Session made;
  mb_options options = {};
  options.symbols = sizes;
  options.symbol_count = sizes != nullptr ? 1 : 0;
  if (auto status = minbuild::Session::open("../../model/trainer.plan", "../../model/checkpoint", options, made); !status)
    std::printf("%s\n", status.text());
  return made;
}

void say(const minbuild::Status& status) { std::printf("%d %s\n", status.code(), status.text()); }

void train(minbuild::Session& session, int32_t batch, std::vector<int64_t> labels, int32_t side = 28) {
  std::vector<float> image(static_cast<size_t>(batch * 28 * side));
  const mb_tensor inputs[] = {minbuild::tensor(image, {batch, 1, 28, side}),
                              minbuild::tensor(labels, {static_cast<int32_t>(labels.size())})};
  say(session.train_step(inputs));
}

}  // namespace

int main() {
  const int32_t four = 4;
  minbuild::Session session = create(nullptr), small = create(&four);
  minbuild::Session moved = std::move(small);  // takes its sizes with it
  std::vector<double> doubles(2 * 28 * 28);
  std::vector<int64_t> labels(2);
  const mb_tensor inputs[] = {minbuild::tensor(doubles, {2, 1, 28, 28}), minbuild::tensor(labels, {2})};
  say(session.train_step(inputs));
  train(session, 2, {0, 0}, 27);
  train(session, 2, {0, 0, 0});
  train(session, 0, {});
  train(session, 4, {0, 9, 1, 10});
  train(moved, 5, std::vector<int64_t>(5));
  train(session, 33, std::vector<int64_t>(33));
  std::vector<float> image(28 * 28);
  std::vector<int64_t> negative = {-1};
  const mb_tensor last[] = {minbuild::tensor(image, {1, 1, 28, 28}), minbuild::tensor(negative, {1})};
  say(session.eval_step(last));
  say(session.train_step({last, 1}));
  const mb_tensor short_of[] = {minbuild::tensor(image, {2, 1, 28, 28}), last[1]};
  say(session.train_step(short_of));
  train(session, 2, {0, 0});  // the session goes on
  return 0;
}
