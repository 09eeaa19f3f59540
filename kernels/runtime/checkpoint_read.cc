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
static_assert(checkpoint::kTensor_name == checkpoint::kState_parameter, "what find() looks at");

// Data of the tensor `name` in such a list if it has the type and shape of `want`, else null.
MB_NOINLINE const char* find_data(const Flatbuffer& file, uint32_t table, uint32_t slot, const char* name, const Tensor& want,
                                  uint32_t type) {
  uint32_t entry = find(file, table, slot, name), dims = file.child(entry, checkpoint::kTensor_dims);
  Vector data = file.vector(entry, checkpoint::kTensor_data, 1);
  bool same = data.count == static_cast<uint32_t>(want.count) * element_size(type) &&
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
              reinterpret_cast<uintptr_t>(bytes) % 4 == 0 &&
              (file.scalar(module, checkpoint::kModule_nominal, 1) | file.scalar(module, checkpoint::kModule_external, 1)) == 0;
  if (bytes != nullptr && !good)
    return s->error.fail(MB_BAD_CHECKPOINT, "not an ORT checkpoint of version %d with all values inside", checkpoint::kVersion);
  Vector groups = file.vector(root, checkpoint::kCheckpoint_groups, 4);
  uint32_t group = groups.count == 0 ? 0 : file.follow(static_cast<uint32_t>(groups.data - file.data));
  for (int apply = 0; apply < 2; ++apply) {
    for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i) {
      const plan::Parameter& parameter = p.parameter(i);
      const char* name = p.name(parameter.name);
      const char* text = name;
      uint32_t type = p.tensor(parameter.tensor).type, more = 0, table = module, slot = checkpoint::kModule_frozen;
      if (parameter.kind == MB_TRAINABLE) {
        slot = checkpoint::kModule_trainable;
        if (group != 0) more = p.moments;
      }
      if (bytes == nullptr && (parameter.kind != MB_FROZEN || s->regions[p.bound(i)].data != nullptr)) continue;
      Tensor want;
      s->resolve(parameter.tensor, &want);
      // The parameter itself, then its moments, which lie further on in the same layout.
      char moment[] = "momentum/";
      size_t offset = 0;
      for (;; --more) {
        const char* found = find_data(file, table, slot, text, want, type);
        if (found == nullptr)
          return s->error.fail(MB_BAD_CHECKPOINT, "the checkpoint lacks %s or its state in the model's type and shape",
                               word_of(name));
        if (apply != 0 && parameter.kind == MB_FROZEN) {
          s->regions[p.bound(i)] = {const_cast<char*>(found), static_cast<uint32_t>(want.count) * element_size(type)};
        } else if (apply != 0) {
          memcpy(want.data + offset, found, static_cast<uint32_t>(want.count) * element_size(type));
        }
        if (more == 0) break;
        if (offset == 0) {
          table = find(file, group, checkpoint::kGroup_states, name), slot = checkpoint::kState_moments, text = moment;
          offset = p.trainable_bytes;
        }
        offset += p.trainable_bytes;
        ++moment[8];
      }
    }
  }
  if (group != 0) s->counters->step = static_cast<int64_t>(file.scalar(group, checkpoint::kGroup_step, 8));
  return MB_OK;
}

}  // namespace minbuild
