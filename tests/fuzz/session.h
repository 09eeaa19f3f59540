// What the harnesses share: the files of one trainer, read once, and everything that can be done with a session.
#ifndef MINBUILD_TESTS_FUZZ_SESSION_H_
#define MINBUILD_TESTS_FUZZ_SESSION_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "minbuild/trainer.h"

namespace fuzz {

using Bytes = std::vector<uint8_t>;

// Files of the trainer are in the folder that MINBUILD_FUZZ_FILES names.
inline Bytes file(const char* name) {
  std::string path = std::string(getenv("MINBUILD_FUZZ_FILES") ? getenv("MINBUILD_FUZZ_FILES") : ".") + "/" + name;
  FILE* from = fopen(path.c_str(), "rb");
  if (from == nullptr) {
    fprintf(stderr, "%s: cannot be read. Set MINBUILD_FUZZ_FILES.\n", path.c_str());
    exit(1);
  }
  Bytes found;
  char piece[4096];
  for (size_t n; (n = fread(piece, 1, sizeof piece, from)) > 0;) found.insert(found.end(), piece, piece + n);
  fclose(from);
  return found;
}

// Bytes in a piece of the heap that is exactly as large, so that the sanitizer sees the first byte too far.
struct Exact {
  explicit Exact(const uint8_t* data, size_t size) : size(size), data(static_cast<uint8_t*>(aligned(size))) {
    if (size != 0 && data != nullptr) memcpy(this->data, data, size);
  }
  explicit Exact(const Bytes& bytes) : Exact(bytes.data(), bytes.size()) {}
  Exact(const Exact&) = delete;
  ~Exact() { free(data); }

  size_t size;
  uint8_t* data;

 private:
  static void* aligned(size_t size) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, size == 0 ? 1 : size) != 0) abort();
    return memory;
  }
};

constexpr size_t kMostMemory = size_t{4} << 20;  // of a session: a plan may ask for any
constexpr size_t kMostElements = size_t{1} << 14;  // of an input: filling more takes longer than running it

// A session over plan and checkpoint in memory that is full of garbage; null where they are refused.
struct Session {
  Session(const Exact& plan, const Exact* checkpoint) {
    mb_options options = {};
    options.accept_any_checkpoint = 1;  // a fuzzer does not find the fingerprint
    size_t bytes = 0;
    if (mb_arena_size(plan.data, plan.size, nullptr, 0, &bytes) != MB_OK || bytes > kMostMemory) return;
    arena = new Exact(nullptr, bytes);
    memset(arena->data, 0xa5, bytes);
    options.arena = arena->data;
    options.arena_size = arena->size;
    if (mb_create(plan.data, plan.size, checkpoint ? checkpoint->data : nullptr, checkpoint ? checkpoint->size : 0,
                  &options, &session) != MB_OK)
      session = nullptr;
  }
  ~Session() {
    mb_destroy(session);
    delete arena;
  }
  mb_session* session = nullptr;
  Exact* arena = nullptr;
};

// Inputs as the session describes them, filled from `bytes` over and over; free dimensions take 2.
struct Inputs {
  Inputs(mb_session* session, int graph, const uint8_t* bytes, size_t size) {
    static const int kSizes[17] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
    for (size_t i = 0; i < 16; ++i) {
      const char* name;
      mb_tensor tensor;
      if (mb_get_port(session, graph * 2 + MB_INPUTS, i, &name, &tensor) != MB_OK) break;
      size_t count = 1;
      for (int k = 0; k < tensor.rank && k < MB_MAX_RANK; ++k) {
        if (tensor.dims[k] < 0) tensor.dims[k] = 2;
        count *= static_cast<size_t>(tensor.dims[k]);
        if (count > kMostElements) count = kMostElements, tensor.dims[k] = 0;
      }
      Bytes values(count * static_cast<size_t>(tensor.type >= 0 && tensor.type < 17 ? kSizes[tensor.type] : 0));
      for (size_t k = 0; k < values.size() && size != 0; ++k) values[k] = bytes[k % size];
      data.push_back(new Exact(values));
      tensor.data = data.back()->data;
      tensors.push_back(tensor);
    }
  }
  ~Inputs() {
    for (Exact* each : data) delete each;
  }
  std::vector<Exact*> data;
  std::vector<mb_tensor> tensors;
};

inline int discard(void* total, const void* bytes, size_t size) {
  const uint8_t* each = static_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < size; ++i) *static_cast<uint64_t*>(total) += each[i];  // reads every byte
  return 0;
}

// What the bits of `choice` say: evaluation, training, an update, lists, saving. What is refused is fine.
inline void exercise(mb_session* session, const uint8_t* bytes, size_t size, uint8_t choice) {
  uint64_t total = 0;
  for (int graph : {MB_EVAL, MB_TRAIN}) {
    if ((choice >> graph & 1) == 0) continue;
    Inputs inputs(session, graph, bytes, size);
    mb_run(session, graph, inputs.tensors.data(), inputs.tensors.size());
  }
  if (choice & 4) mb_optimizer_step(session);
  for (int list : {0, 1, 2, 3, int{MB_PARAMETERS}}) {
    mb_parameter found;
    for (size_t i = 0; (choice & 8) && i < 64 && mb_get(session, list, i, &found) == MB_OK; ++i)
      if (found.name != nullptr) total += strlen(found.name);
  }
  if (choice & 16) mb_write_checkpoint(session, choice >> 5 & 1, discard, &total);
}

}  // namespace fuzz

#endif  // MINBUILD_TESTS_FUZZ_SESSION_H_
