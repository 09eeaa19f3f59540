// OrtTrainingApi: sessions and their steps.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/ort/ort_functions.h"
#include "abi/ort/ort_model.h"
#include "abi/ort/ort_state.h"
#include "abi/ort/sha256.h"
#include "minbuild/config.h"

namespace minbuild::ort {
namespace {

int64_t first_seed = -1;  // of sessions created from now on; -1: the trainer's own

// ---------------------------------------------------------------------------- creation

Status* check_model(const char* name, const void* data, size_t size) {
  uint8_t digest[32];
  Sha256::digest(static_cast<const uint8_t*>(data), size, digest);
  for (const uint8_t* known = kModelDigests; known < kModelDigests + sizeof kModelDigests; known += sizeof digest)
    if (memcmp(known, digest, sizeof digest) == 0) return nullptr;
  return failure(kInvalidArgument, name, ": not of the model that this library was made of. Reduce it with --abi ort.");
}
// A model file that is not there is none: the library has the model.
Status* check_file(const char* path) {
  size_t size = 0;
  if (path == nullptr) return nullptr;
  void* data = read_file(path, &size);
  if (data == nullptr) return nullptr;
  Status* status = check_model(path, data, size);
  free(data);
  return status;
}

Status* create(CheckpointState* state, bool evaluates, bool optimizes, TrainingSession** out) {
  *out = static_cast<TrainingSession*>(calloc(1, sizeof(TrainingSession)));
  if (*out == nullptr) return out_of_memory();
  (*out)->state = state;
  (*out)->evaluates = evaluates;
  (*out)->optimizes = optimizes;
  mb_set_learning_rate(state->session, 0.001f);  // whatever the checkpoint has: so does ONNX Runtime
  if (first_seed >= 0) mb_set_seed(state->session, first_seed);
  return nullptr;
}
Status* create_from_files(const void*, const void*, CheckpointState* state, const char* train, const char* eval,
                          const char* optimizer, TrainingSession** out) {
  if (train == nullptr) return failure(kInvalidArgument, "a training session needs a training model");
  const char* const paths[] = {train, eval, optimizer};
  for (const char* path : paths)
    if (Status* status = check_file(path)) return status;
  return create(state, eval != nullptr, optimizer != nullptr, out);
}
Status* create_from_buffers(const void*, const void*, CheckpointState* state, const void* train, size_t train_size,
                            const void* eval, size_t eval_size, const void* optimizer, size_t optimizer_size,
                            TrainingSession** out) {
  if (train_size == 0) return failure(kInvalidArgument, "a training session needs a training model");
  if (Status* status = check_model("the training model", train, train_size)) return status;
  if (eval_size > 0)
    if (Status* status = check_model("the evaluation model", eval, eval_size)) return status;
  if (optimizer_size > 0)
    if (Status* status = check_model("the optimizer model", optimizer, optimizer_size)) return status;
  return create(state, eval_size > 0, optimizer_size > 0, out);
}
void release_session(TrainingSession* session) { free(session); }
Status* set_seed(int64_t seed) { return first_seed = seed < 0 ? 0 : seed, nullptr; }

// ---------------------------------------------------------------------------- names

template <int list, bool of_evaluation>
Status* count(const TrainingSession* session, size_t* out) {
  *out = of_evaluation && !session->evaluates ? 0 : mb_count(session->state->session, list);
  return nullptr;
}
template <int list, bool of_evaluation>
Status* name(const TrainingSession* session, size_t index, Allocator* allocator, char** out) {
  mb_parameter found;
  if ((of_evaluation && !session->evaluates) || mb_get(session->state->session, list, index, &found) != MB_OK)
    return failure(kInvalidArgument, "there is no input or output of that number");
  return copy_text(allocator, found.name, out);
}

// ---------------------------------------------------------------------------- steps

Status* fill(const Value* value, mb_tensor* tensor) {
  tensor->data = value->data;
  tensor->type = value->shape.type;
  tensor->rank = static_cast<int32_t>(value->shape.rank);
  for (size_t i = 0; i < value->shape.rank; ++i) {
    if (value->shape.dims[i] > INT32_MAX) return failure(kInvalidArgument, "a dimension of an input is too large");
    tensor->dims[i] = static_cast<int32_t>(value->shape.dims[i]);
  }
  return nullptr;
}

// Into a new value, or into the one that the program made.
Status* take_output(const mb_session* session, int graph, size_t index, Value** out) {
  mb_parameter found;
  if (mb_get(session, 2 * graph + MB_OUTPUTS, index, &found) != MB_OK)
    return failure(kInvalidArgument, "the model has fewer outputs");
  if (*out == nullptr) return copy_tensor(default_allocator(), found.value, out);
  Value* value = *out;
  size_t count = 1;
  for (int32_t i = 0; i < found.value.rank; ++i) count *= static_cast<size_t>(found.value.dims[i]);
  if (value->shape.type != found.value.type || count_of(value->shape) != count)
    return failure(kInvalidArgument, "output '", found.name, "' has another type or shape than the value given for it");
  memcpy(value->data, found.value.data, value->bytes);
  return nullptr;
}

Status* step(TrainingSession* session, int graph, size_t input_count, const Value* const* inputs, size_t output_count,
             Value** outputs) {
  CheckpointState* state = session->state;
  mb_tensor* tensors = static_cast<mb_tensor*>(calloc(input_count + 1, sizeof(mb_tensor)));
  if (tensors == nullptr) return out_of_memory();
  Status* status = nullptr;
  for (size_t i = 0; status == nullptr && i < input_count; ++i) status = fill(inputs[i], &tensors[i]);
  if (status == nullptr) {
    mb_status done = mb_run(state->session, graph, tensors, input_count);
    if (done == MB_OUT_OF_MEMORY && input_count == mb_models[0].counts[graph]) {
      status = grow(state, graph, tensors);
      if (status == nullptr) done = mb_run(state->session, graph, tensors, input_count);
    }
    if (status == nullptr && done != MB_OK) {
      mb_explain_refusal(state->session, graph, done, tensors, input_count, state->sizes);
      status = said(state->session, done);
    }
  }
  free(tensors);
  for (size_t i = 0; status == nullptr && i < output_count; ++i)
    status = take_output(state->session, graph, i, &outputs[i]);
  return status;
}
Status* train_step(TrainingSession* session, const void*, size_t input_count, const Value* const* inputs,
                   size_t output_count, Value** outputs) {
  return step(session, MB_TRAIN, input_count, inputs, output_count, outputs);
}
Status* eval_step(TrainingSession* session, const void*, size_t input_count, const Value* const* inputs,
                  size_t output_count, Value** outputs) {
  if (!session->evaluates) return failure(kFail, "the session was created without an evaluation model");
  return step(session, MB_EVAL, input_count, inputs, output_count, outputs);
}
Status* lazy_reset_grad(TrainingSession* session) { return mb_lazy_reset_grad(session->state->session), nullptr; }

Status* check_optimizer(const TrainingSession* session) {
  return session->optimizes ? nullptr : failure(kFail, "the session was created without an optimizer model");
}
Status* optimizer_step(TrainingSession* session, const void*) {
  if (Status* status = check_optimizer(session)) return status;
  return said(session->state->session, mb_optimizer_step(session->state->session));
}
Status* set_learning_rate(TrainingSession* session, float rate) {
  if (Status* status = check_optimizer(session)) return status;
  return said(session->state->session, mb_set_learning_rate(session->state->session, rate));
}
Status* get_learning_rate(TrainingSession* session, float* out) {
  if (Status* status = check_optimizer(session)) return status;
  return *out = mb_learning_rate(session->state->session), nullptr;
}
Status* register_schedule(TrainingSession* session, int64_t warmup, int64_t total, float initial) {
  if (Status* status = check_optimizer(session)) return status;
  mb_schedule_linear(session->state->session, &session->schedule, warmup, total, initial);
  session->scheduled = true;
  return nullptr;
}
Status* schedule_step(TrainingSession* session) {
  if (!session->scheduled) return failure(kFail, "register a scheduler of the learning rate first");
  return mb_schedule_step(session->state->session, &session->schedule), nullptr;
}

// ---------------------------------------------------------------------------- all parameters, and export

Status* parameters_size(TrainingSession* session, size_t* out, bool trainable) {
  return said(session->state->session, mb_parameters_size(session->state->session, trainable, out));
}
template <int what>
Status* copy_parameters(TrainingSession* session, Value* buffer, bool trainable) {
  mb_session* trainer = session->state->session;
  if (buffer->shape.type != MB_FLOAT)
    return failure(kInvalidArgument, "parameters are copied to and from a tensor of floats");
  size_t count = count_of(buffer->shape);
  return said(trainer, mb_parameter_buffer(trainer, trainable, what, static_cast<float*>(buffer->data), &count));
}

#if MB_EXPORT
Status* export_model(TrainingSession* session, const char* path, size_t count, const char* const* names) {
  size_t known = 0;
  const char* missing = "";
  for (size_t i = 0; i < count; ++i) {
    bool found = false;
    for (const char* output : kExportOutputs) found |= output != nullptr && strcmp(output, names[i]) == 0;
    if (found) ++known;
    else missing = names[i];
  }
  if (known != count || count != sizeof kExportOutputs / sizeof *kExportOutputs - 1)
    return failure(kInvalidArgument, "this library exports other outputs than these: ", missing,
                   ". Reduce with --export-output for each.");
  Written file = {};
  mb_status done = mb_export_model(session->state->session, kExportTemplate, kExportTemplateSize, append, &file);
  Status* status = said(session->state->session, done);
  if (status == nullptr) {
    FILE* out = fopen(path, "wb");
    bool whole = out != nullptr && fwrite(file.data, 1, file.size, out) == file.size;
    if (out != nullptr) whole &= fclose(out) == 0;
    if (!whole) status = failure(kFail, "cannot write ", path);
  }
  free(file.data);
  return status;
}
#else
Status* export_model(TrainingSession*, const char*, size_t, const char* const*) {
  return failure(kNotImplemented, "the model has no inference model to export");
}
#endif

template <class F>
const void* place_of(F* function) {
  return reinterpret_cast<const void*>(function);
}
enum { kTrainInputs = 0, kTrainOutputs = 1, kEvalInputs = 2, kEvalOutputs = 3 };  // lists of mb_get

}  // namespace

void fill_training(const void** table) {
  const struct {
    uint16_t place;
    const void* function;
  } all[] = {
      {kCreateTrainingSession, place_of(create_from_files)},
      {kCreateTrainingSessionFromBuffer, place_of(create_from_buffers)},
      {kReleaseTrainingSession, place_of(release_session)},
      {kSetSeed, place_of(set_seed)},
      {kTrainingSessionGetTrainingModelInputCount, place_of(count<kTrainInputs, false>)},
      {kTrainingSessionGetTrainingModelOutputCount, place_of(count<kTrainOutputs, false>)},
      {kTrainingSessionGetEvalModelInputCount, place_of(count<kEvalInputs, true>)},
      {kTrainingSessionGetEvalModelOutputCount, place_of(count<kEvalOutputs, true>)},
      {kTrainingSessionGetTrainingModelInputName, place_of(name<kTrainInputs, false>)},
      {kTrainingSessionGetTrainingModelOutputName, place_of(name<kTrainOutputs, false>)},
      {kTrainingSessionGetEvalModelInputName, place_of(name<kEvalInputs, true>)},
      {kTrainingSessionGetEvalModelOutputName, place_of(name<kEvalOutputs, true>)},
      {kTrainStep, place_of(train_step)},
      {kEvalStep, place_of(eval_step)},
      {kLazyResetGrad, place_of(lazy_reset_grad)},
      {kOptimizerStep, place_of(optimizer_step)},
      {kSetLearningRate, place_of(set_learning_rate)},
      {kGetLearningRate, place_of(get_learning_rate)},
      {kRegisterLinearLRScheduler, place_of(register_schedule)},
      {kSchedulerStep, place_of(schedule_step)},
      {kGetParametersSize, place_of(parameters_size)},
      {kCopyParametersToBuffer, place_of(copy_parameters<MB_FROM_PARAMETERS>)},
      {kCopyBufferToParameters, place_of(copy_parameters<MB_TO_PARAMETERS>)},
      {kExportModelForInferencing, place_of(export_model)},
  };
  for (const auto& entry : all) table[entry.place] = entry.function;
  fill_state(table);
}

}  // namespace minbuild::ort
