// Reads an ORT training checkpoint (flatbuffer "ODTC", version 2). Everything is checked before anything is changed.
#include "minbuild/checkpoint.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

struct Loader {
  Session* s;
  Flatbuffer file;
  bool apply;

  // The table in the list at field `slot` of `table` whose string field `key` is `name`; 0 when there is none.
  uint32_t find(uint32_t table, uint32_t slot, uint32_t key, const char* name) const {
    Vector list = file.vector(table, slot, 4, 4);
    uint32_t at = list.data == nullptr ? 0 : static_cast<uint32_t>(list.data - file.data);
    for (; list.count > 0; --list.count, at += 4) {
      uint32_t entry = file.follow(at);
      if (file.equals(file.child(entry, key), name)) return entry;
    }
    return 0;
  }

  // Data of tensor `name` in that list if it has the type and shape of `want`, else null. `to` receives a copy.
  const char* tensor(uint32_t table, uint32_t slot, const char* name, const Tensor& want, uint32_t type, char* to) const {
    uint32_t entry = find(table, slot, checkpoint::kTensor_name, name);
    uint32_t bytes = static_cast<uint32_t>(want.count) * kElementSizes[type];
    Vector dims = file.vector(entry, checkpoint::kTensor_dims, 8, 4);
    Vector data = file.vector(entry, checkpoint::kTensor_data, 1, 1);
    bool same = data.data != nullptr && data.count == bytes && dims.count == static_cast<uint32_t>(want.rank) &&
                file.scalar(entry, checkpoint::kTensor_element, 4) == type;
    for (uint32_t i = 0; same && i < dims.count; ++i) {
      const int32_t dim[] = {want.dims[i], 0};
      same = equal_bytes(dims.data + 8 * i, dim, 8);
    }
    if (!same) return nullptr;
    if (apply && to != nullptr) memcpy(to, data.data, bytes);
    return reinterpret_cast<const char*>(data.data);
  }

  mb_status load(uint32_t index, uint32_t module, uint32_t group) {
    const plan::Parameter& parameter = s->plan.parameter(index);
    const char* name = s->plan.name(parameter.name);
    uint32_t type = s->plan.tensor(parameter.tensor).type;
    bool trained = parameter.kind == MB_TRAINABLE, frozen = parameter.kind == MB_FROZEN;
    Tensor want;
    s->resolve(parameter.tensor, &want);
    const char* found = tensor(module, trained ? checkpoint::kModule_trainable : checkpoint::kModule_frozen, name, want, type,
                               frozen ? nullptr : want.data);
    if (frozen && apply) s->frozen[index] = found;
    char moment[] = "momentum0";
    uint32_t moments = group != 0 && trained ? s->plan.moments : 0;
    uint32_t state = moments > 0 ? find(group, checkpoint::kGroup_states, checkpoint::kState_parameter, name) : 0;
    for (uint32_t m = 0; m < moments && found != nullptr; ++m, ++moment[8])
      found = tensor(state, checkpoint::kState_moments, moment, want, type,
                     want.data + (2 + m) * size_t{s->plan.trainable_bytes});
    if (found != nullptr) return MB_OK;
    return s->error.fail(MB_BAD_CHECKPOINT, "%s or its state is not in the checkpoint, or has another type or shape",
                         word_of(name));
  }
};

}  // namespace

mb_status read_checkpoint(Session* s, const void* bytes, size_t size) {
  const PlanView& p = s->plan;
  if (bytes == nullptr) {
    for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i)
      if (p.parameter(i).kind == MB_FROZEN && s->frozen[i] == nullptr)
        return s->error.fail(MB_BAD_CHECKPOINT, "this model has frozen parameters and needs its checkpoint");
    return MB_OK;
  }
  Loader loader = {s, {static_cast<const uint8_t*>(bytes), static_cast<uint32_t>(size)}, false};
  const Flatbuffer& file = loader.file;
  uint32_t root = size < 0x7fffffff && reinterpret_cast<uintptr_t>(bytes) % 4 == 0 ? file.root(checkpoint::kIdentifier) : 0;
  uint32_t module = file.child(root, checkpoint::kCheckpoint_module);
  if (root == 0 || file.scalar(root, checkpoint::kCheckpoint_version, 4) != checkpoint::kVersion ||
      file.scalar(module, checkpoint::kModule_nominal, 1) != 0 || file.scalar(module, checkpoint::kModule_external, 1) != 0)
    return s->error.fail(MB_BAD_CHECKPOINT, "not an undamaged ORT checkpoint of version %d with all values inside",
                         checkpoint::kVersion);
  Vector groups = file.vector(root, checkpoint::kCheckpoint_groups, 4, 4);
  uint32_t group = groups.count == 0 ? 0 : file.follow(static_cast<uint32_t>(groups.data - file.data));
  for (int pass = 0; pass < 2; ++pass) {
    for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i) {
      mb_status status = loader.load(i, module, group);
      if (status != MB_OK) return status;
    }
    loader.apply = true;
  }
  uint64_t step = file.scalar(group, checkpoint::kGroup_step, 8);
  if (group != 0) memcpy(s->regions[kPersistent] + p.step_at, &step, sizeof step);
  return MB_OK;
}

}  // namespace minbuild
