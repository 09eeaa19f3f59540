// Reads an ORT training checkpoint (flatbuffer "ODTC", version 2). Everything is checked before anything is changed.
#include "minbuild/checkpoint.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// The entry of `list` (a vector of tables) whose string field is `name`; 0 when there is none.
uint32_t find_entry(const Flatbuffer& file, Vector list, uint32_t slot, const char* name) {
  for (uint32_t i = 0; i < list.count; ++i) {
    uint32_t at = static_cast<uint32_t>(list.data - file.data) + 4 * i;
    uint32_t table = file.follow(at);
    if (file.equals(file.child(table, slot), name)) return table;
  }
  return 0;
}

// Data of a checkpoint tensor if it has the type and shape of `want`, else null.
const uint8_t* data_of(const Flatbuffer& file, uint32_t table, const Tensor& want, uint8_t type, uint32_t bytes) {
  Vector dims = file.vector(table, checkpoint::kTensor_dims, 8, 4);
  Vector data = file.vector(table, checkpoint::kTensor_data, 1, 1);
  if (table == 0 || data.data == nullptr || data.count != bytes || dims.count != static_cast<uint32_t>(want.rank) ||
      file.scalar(table, checkpoint::kTensor_element, 4) != type)
    return nullptr;
  for (uint32_t i = 0; i < dims.count; ++i) {
    int64_t dim;
    memcpy(&dim, dims.data + 8 * i, 8);
    if (dim != want.dims[i]) return nullptr;
  }
  return data.data;
}

// Goes over the parameters twice: first only looking, then copying.
struct Loader {
  Session* s;
  Flatbuffer file;
  Vector lists[2];  // trainable and frozen
  Vector states;    // optimizer state per parameter, may be absent
  const ErrorText& error;
  bool apply;

  mb_status refuse(const char* what, const char* name) {
    return error.fail(MB_BAD_CHECKPOINT, "%s %s is not in the checkpoint, or has another type or shape", what, name);
  }

  mb_status load(const plan::Parameter& parameter) {
    const char* name = s->plan.name(parameter.name);
    const plan::Tensor& t = s->plan.tensor(parameter.tensor);
    Tensor want;
    s->resolve(parameter.tensor, &want);
    uint32_t bytes = static_cast<uint32_t>(want.count * kElementSizes[t.type]);
    uint32_t table = find_entry(file, lists[parameter.kind != MB_TRAINABLE], checkpoint::kTensor_name, name);
    const uint8_t* data = data_of(file, table, want, t.type, bytes);
    if (data == nullptr) return refuse("parameter", name);
    if (parameter.kind == MB_FROZEN) {
      if (apply) {
        s->frozen()[t.at] = reinterpret_cast<const char*>(data);
        s->frozen_sizes()[t.at] = bytes;
      }
      return MB_OK;
    }
    if (apply) memcpy(want.data, data, bytes);
    return parameter.kind == MB_TRAINABLE && states.count > 0 ? load_moments(name, want, t.type, bytes) : mb_status{MB_OK};
  }

  mb_status load_moments(const char* name, const Tensor& want, uint8_t type, uint32_t bytes) {
    uint32_t state = find_entry(file, states, checkpoint::kState_parameter, name);
    Vector list = file.vector(state, checkpoint::kState_moments, 4, 4);
    char moment_name[] = "momentum0";
    for (uint32_t m = 0; m < s->plan.moments; ++m, ++moment_name[8]) {
      const uint8_t* data = data_of(file, find_entry(file, list, checkpoint::kTensor_name, moment_name), want, type, bytes);
      if (data == nullptr) return refuse("optimizer state of", name);
      if (apply) memcpy(want.data + (2 + m) * size_t{s->plan.trainable_bytes}, data, bytes);
    }
    return MB_OK;
  }

  mb_status load_all() {
    mb_status status = MB_OK;
    for (uint32_t i = 0; i < s->plan.count[plan::kParameters] && status == MB_OK; ++i) status = load(s->plan.parameter(i));
    return status;
  }
};

}  // namespace

mb_status read_checkpoint(Session* s, const void* bytes, size_t size, const ErrorText& error) {
  Flatbuffer file = {static_cast<const uint8_t*>(bytes), static_cast<uint32_t>(size)};
  uint32_t root = size > 0x7fffffff ? 0 : file.root(checkpoint::kIdentifier);
  if (root == 0 || file.scalar(root, checkpoint::kCheckpoint_version, 4) != checkpoint::kVersion)
    return error.fail(MB_BAD_CHECKPOINT, "not an undamaged ORT training checkpoint of version %d", checkpoint::kVersion);
  uint32_t state = file.child(root, checkpoint::kCheckpoint_module);
  if (file.scalar(state, checkpoint::kModule_nominal, 1) != 0 ||
      file.scalar(state, checkpoint::kModule_external, 1) != 0)
    return error.fail(MB_BAD_CHECKPOINT, "the checkpoint has no values (it is nominal), or has them in another file");
  Loader loader = {s, file, {}, {nullptr, 0}, error, false};
  loader.lists[0] = file.vector(state, checkpoint::kModule_trainable, 4, 4);
  loader.lists[1] = file.vector(state, checkpoint::kModule_frozen, 4, 4);
  Vector groups = file.vector(root, checkpoint::kCheckpoint_groups, 4, 4);
  uint32_t group = groups.count == 0 ? 0 : file.follow(static_cast<uint32_t>(groups.data - file.data));
  if (s->plan.moments > 0) loader.states = file.vector(group, checkpoint::kGroup_states, 4, 4);
  mb_status status = loader.load_all();
  if (status != MB_OK) return status;
  loader.apply = true;
  loader.load_all();
  uint64_t step = file.scalar(group, checkpoint::kGroup_step, 8);
  if (group != 0) memcpy(s->persistent() + s->plan.step_at, &step, 8);
  return MB_OK;
}

}  // namespace minbuild
