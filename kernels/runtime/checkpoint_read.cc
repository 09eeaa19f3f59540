// Reads an ORT training checkpoint (flatbuffer "ODTC", version 2). Everything is checked before anything is changed.
#include "minbuild/checkpoint.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// The table in the list at field `slot` of `table` whose first field, a string, is `name`; 0 when there is none.
MB_NOINLINE uint32_t find(const Flatbuffer& file, uint32_t table, uint32_t slot, const char* name) {
  Vector list = file.vector(table, slot, 4);
  for (uint32_t at = static_cast<uint32_t>(list.data - file.data); list.count > 0; --list.count, at += 4) {
    uint32_t entry = file.follow(at);
    if (file.equals(file.child(entry, checkpoint::kTensor_name), name)) return entry;
  }
  return 0;
}
static_assert(checkpoint::kTensor_name == checkpoint::kState_parameter && checkpoint::kTensor_name == checkpoint::kGroup_name,
              "what find() looks at");

// Data of the tensor `name` in such a list if it has the type and shape of `want`, else null.
MB_NOINLINE const char* find_data(const Flatbuffer& file, uint32_t table, uint32_t slot, const char* name, const Tensor& want,
                                  uint32_t type) {
  uint32_t entry = find(file, table, slot, name), dims = file.child(entry, checkpoint::kTensor_dims);
  Vector data = file.vector(entry, checkpoint::kTensor_data, 1);
  bool same = data.count == bytes_of(want, type) &&
              file.scalar(entry, checkpoint::kTensor_element, 4) == type &&
              file.u32(dims) == static_cast<uint32_t>(want.rank);
  for (int i = 0; i < want.rank; ++i) same &= file.load(dims += i == 0 ? 4 : 8, 8) == static_cast<uint32_t>(want.dims[i]);
  return same ? reinterpret_cast<const char*>(data.data) : nullptr;
}

}  // namespace

mb_status read_checkpoint(Session* s, const void* bytes, size_t size) {
  const PlanView& p = s->plan;
  // No checkpoint reads as an empty one, from which only frozen parameters are wanted that are nowhere else.
  Flatbuffer file = {static_cast<const uint8_t*>(bytes), bytes == nullptr ? 0 : static_cast<uint32_t>(size)};
  uint32_t root = file.root(checkpoint::kIdentifier), module = file.child(root, checkpoint::kCheckpoint_module);
  bool good = file.scalar(root, checkpoint::kCheckpoint_version, 4) == checkpoint::kVersion && size <= 0x7fffffff &&
              reinterpret_cast<uintptr_t>(bytes) % 4 == 0;
  if (bytes != nullptr && !good)
    return s->error.fail(MB_BAD_CHECKPOINT, kUnreadable, word_of("ORT checkpoint"), checkpoint::kVersion);
  uint32_t group = find(file, root, checkpoint::kCheckpoint_groups, "group0");
  for (int apply = 0; apply < 2; ++apply) {
    for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i) {
      const plan::Parameter& parameter = p.parameter(i);
      const char *name = p.name(parameter.name), *text = name;
      Tensor want;
      const plan::Tensor& t = s->resolve(parameter.tensor, &want);
      uint32_t table = module, slot = checkpoint::kModule_frozen, home = p.bound(i), length = bytes_of(want, t.type);
      if (t.region == kPersistent) home = kPersistent;
      if (i < p.trained) home = kTrained, slot = checkpoint::kModule_trainable;
      // A frozen parameter may be nowhere yet. What it is bound to is as large as its shape says.
      Span* bound = home > kNothing ? &s->regions[home] : nullptr;
      bool good = t.region == home && (bound != nullptr || want.data != nullptr);
      uint32_t wanted = bytes != nullptr || (bound != nullptr && bound->data == nullptr);
      if (group != 0 && i < p.trained) wanted += p.count[plan::kMoments];
      // The parameter itself, then its moments, which lie behind the gradients in the same layout.
      for (uint32_t k = 0; k < wanted && good; ++k) {
        if (k == 1) table = find(file, group, checkpoint::kGroup_states, name), slot = checkpoint::kState_moments;
        if (k > 0) text = p.moment(k - 1), want.data += (k == 1 ? 2 : 1) * size_t{p.trainable_bytes};
        const char* found = find_data(file, table, slot, text, want, t.type);
        good = found != nullptr;
        if (!good || apply == 0) continue;
        if (bound == nullptr) {
          memcpy(want.data, found, length);
        } else {
          *bound = {const_cast<char*>(found), length};
          s->keeps_checkpoint = true;
        }
      }
      if (!good) return s->error.fail(MB_BAD_CHECKPOINT, "the checkpoint lacks %s in the model's type and shape", word_of(name));
    }
  }
  if (group != 0) s->counters->step = static_cast<int64_t>(file.scalar(group, checkpoint::kGroup_step, 8));
  return MB_OK;
}

}  // namespace minbuild
