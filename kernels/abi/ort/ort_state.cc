// Checkpoint states: loading, saving, single parameters and properties.
#include "abi/ort/ort_state.h"

#include <stdlib.h>
#include <string.h>

#include "abi/ort/ort_functions.h"
#include "abi/ort/ort_model.h"

namespace minbuild::ort {
namespace {

Status* load(const char* path, CheckpointState** out) {
  size_t size = 0;
  void* bytes = read_file(path, &size);
  if (bytes == nullptr) return failure(kNoSuchFile, "cannot read ", path);
  return open_state(bytes, size, out);
}
Status* load_from_buffer(const void* bytes, size_t size, CheckpointState** out) {
  void* copy = aligned_alloc(16, (size + 16) & ~size_t{15});
  if (copy == nullptr) return out_of_memory();
  if (size > 0) memcpy(copy, bytes, size);
  return open_state(copy, size, out);
}
Status* save(CheckpointState* state, const char* path, bool optimizer) {
  return said(state->session, mb_save_checkpoint(state->session, path, optimizer));
}

// ---------------------------------------------------------------------------- parameters

Status* find(const CheckpointState* state, const char* name, mb_parameter* found) {
  if (mb_find_parameter(state->session, name, found) == MB_OK) return nullptr;
  return failure(kInvalidArgument, "there is no parameter '", name, "'");
}
Status* parameter_shape(const CheckpointState* state, const char* name, Shape** out) {
  mb_parameter found;
  if (Status* status = find(state, name, &found)) return status;
  *out = static_cast<Shape*>(calloc(1, sizeof(Shape)));
  if (*out == nullptr) return out_of_memory();
  (*out)->type = found.value.type;
  (*out)->rank = static_cast<size_t>(found.value.rank);
  for (int32_t i = 0; i < found.value.rank; ++i) (*out)->dims[i] = found.value.dims[i];
  return nullptr;
}
Status* update_parameter(CheckpointState* state, const char* name, const Value* value) {
  mb_parameter found;
  if (Status* status = find(state, name, &found)) return status;
  bool same = value->shape.type == found.value.type && value->shape.rank == static_cast<size_t>(found.value.rank);
  for (int32_t i = 0; same && i < found.value.rank; ++i) same = value->shape.dims[i] == found.value.dims[i];
  if (!same) return failure(kInvalidArgument, "parameter '", name, "' has another type or shape than the value");
  memcpy(found.value.data, value->data, value->bytes);
  return nullptr;
}
Status* get_parameter(const CheckpointState* state, const char* name, Allocator* allocator, Value** out) {
  mb_parameter found;
  if (Status* status = find(state, name, &found)) return status;
  return copy_tensor(allocator, found.value, out);
}

// ---------------------------------------------------------------------------- properties

enum { kInteger = 0, kReal = 1, kText = 2 };  // OrtPropertyType

Status* add_property(CheckpointState* state, const char* name, int type, const void* value) {
  mb_property property = {};
  property.name = name;
  if (type == kInteger) {
    property.type = MB_INT64;
    memcpy(&property.integer, value, sizeof property.integer);
  } else if (type == kReal) {
    property.type = MB_FLOAT;
    memcpy(&property.real, value, sizeof property.real);
  } else if (type == kText) {
    property.type = MB_STRING;
    property.text = static_cast<const char*>(value);
  } else {
    return failure(kInvalidArgument, "a property is an integer, a float or a text");
  }
  return said(state->session, mb_set_property(state->session, &property));
}
Status* get_property(const CheckpointState* state, const char* name, Allocator* allocator, int* type, void** value) {
  mb_property found;
  if (mb_find_property(state->session, name, &found) != MB_OK)
    return failure(kInvalidArgument, "there is no property '", name, "'");
  if (found.type == MB_STRING) {
    *type = kText;
    return copy_text(allocator, found.text, reinterpret_cast<char**>(value));
  }
  *type = found.type == MB_INT64 ? kInteger : kReal;
  *value = allocator->alloc(allocator, sizeof found.integer);
  if (*value == nullptr) return out_of_memory();
  if (*type == kInteger) memcpy(*value, &found.integer, sizeof found.integer);
  else memcpy(*value, &found.real, sizeof found.real);
  return nullptr;
}

// ---------------------------------------------------------------------------- sessions

mb_status create(const void* checkpoint, size_t size, const int32_t* sizes, mb_options* options, mb_session** session) {
  options->symbols = mb_models[0].symbol_count > 0 ? sizes : nullptr;
  options->symbol_count = mb_models[0].symbol_count;
  return mb_create(kPlanSize > 0 ? kPlan : nullptr, kPlanSize, checkpoint, size, options, session);
}

}  // namespace

Status* said(const mb_session* session, mb_status status) {
  if (status == MB_OK) return nullptr;
  const Code code = status == MB_UNSUPPORTED                        ? kNotImplemented
                    : status == MB_IO || status == MB_OUT_OF_MEMORY ? kFail
                                                                    : kInvalidArgument;
  return failure(code, mb_last_error(session));
}

Status* open_state(void* checkpoint, size_t size, CheckpointState** out) {
  CheckpointState* state = static_cast<CheckpointState*>(calloc(1, sizeof(CheckpointState)));
  if (state == nullptr) return free(checkpoint), out_of_memory();
  mb_options options = {};
  state->checkpoint = checkpoint;
  for (size_t i = 0; i < mb_models[0].symbol_count; ++i) state->sizes[i] = mb_models[0].symbols[i].largest;
  if (create(checkpoint, size, state->sizes, &options, &state->session) != MB_OK) {
    Status* status = failure(kInvalidArgument, options.error);
    free(state);
    free(checkpoint);
    return status;
  }
  *out = state;
  return nullptr;
}

int append(void* user, const void* bytes, size_t size) {
  Written* written = static_cast<Written*>(user);
  if (size > written->room - written->size) {
    const size_t room = (2 * written->room + size + 16) & ~size_t{15};
    char* larger = static_cast<char*>(aligned_alloc(16, room));
    if (larger == nullptr) return 1;
    if (written->size > 0) memcpy(larger, written->data, written->size);
    free(written->data);
    written->data = larger, written->room = room;
  }
  memcpy(written->data + written->size, bytes, size);
  written->size += size;
  return 0;
}

Status* grow(CheckpointState* state, int graph, const mb_tensor* inputs) {
  const mb_model& model = mb_models[0];
  int32_t sizes[MB_MOST_MODEL_SYMBOLS];
  memcpy(sizes, state->sizes, sizeof sizes);
  for (size_t i = 0; i < model.counts[graph]; ++i) {
    const mb_model_input& expected = model.inputs[graph][i];
    for (int32_t axis = 0; axis < expected.rank; ++axis) {
      const int32_t symbol = -2 - expected.dims[axis];
      if (symbol >= 0 && inputs[i].dims[axis] > sizes[symbol]) sizes[symbol] = inputs[i].dims[axis];
    }
  }
  mb_session *old = state->session, *made = nullptr;
  if (memcmp(sizes, state->sizes, sizeof sizes) == 0) return said(old, MB_OUT_OF_MEMORY);
  Written written = {};
  if (mb_status status = mb_write_checkpoint(old, 1, append, &written)) return free(written.data), said(old, status);
  mb_options options = {};
  if (create(written.data, written.size, sizes, &options, &made) != MB_OK) {
    free(written.data);
    return failure(kFail, options.error);
  }
  *made->progress = *old->progress;
  made->replaces_gradients = old->replaces_gradients;
  mb_parameter from, to;
  for (size_t i = 0; mb_get_parameter(old, i, &from) == MB_OK; ++i)
    if (from.gradient != nullptr && mb_find_parameter(made, from.name, &to) == MB_OK) {
      size_t bytes = element_bytes(from.value.type);
      for (int32_t axis = 0; axis < from.value.rank; ++axis) bytes *= static_cast<size_t>(from.value.dims[axis]);
      memcpy(to.gradient, from.gradient, bytes);
    }
  mb_destroy(old);
  free(state->checkpoint);
  state->session = made;
  state->checkpoint = written.data;
  memcpy(state->sizes, sizes, sizeof sizes);
  return nullptr;
}

void release_state(CheckpointState* state) {
  if (state == nullptr) return;
  mb_destroy(state->session);
  free(state->checkpoint);
  free(state);
}

void fill_state(const void** table) {
  table[kLoadCheckpoint] = reinterpret_cast<const void*>(load);
  table[kLoadCheckpointFromBuffer] = reinterpret_cast<const void*>(load_from_buffer);
  table[kSaveCheckpoint] = reinterpret_cast<const void*>(save);
  table[kReleaseCheckpointState] = reinterpret_cast<const void*>(release_state);
  table[kGetParameterTypeAndShape] = reinterpret_cast<const void*>(parameter_shape);
  table[kUpdateParameter] = reinterpret_cast<const void*>(update_parameter);
  table[kAddProperty] = reinterpret_cast<const void*>(add_property);
  table[kGetProperty] = reinterpret_cast<const void*>(get_property);
  table[kGetParameter] = reinterpret_cast<const void*>(get_parameter);
}

}  // namespace minbuild::ort
