/* minbuild trainer: the public C API. One session trains one model; sessions share nothing and may run on different
 * threads. The threads that a library with --threads makes live within one call of mb_run. No function allocates after mb_create. Every function that can fail returns an mb_status and leaves the
 * session as it was before the call unless it says otherwise. The library exports few functions; what can be
 * said with those is inline below them. */
#ifndef MINBUILD_TRAINER_H_
#define MINBUILD_TRAINER_H_

#include <stddef.h>
#include <stdint.h>

/* The version of this interface, which is also that of the shared library that CMake installs (libminbuild.so.1): the
 * loader refuses a library whose interface is another one. It grows when a program that was compiled against an older
 * header could misbehave with a newer library. */
#define MB_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MB_API __declspec(dllexport)
#else
#define MB_API __attribute__((visibility("default")))
#endif

typedef uint8_t mb_status;
#undef MB_OK /* a macro of windows.h, for the same number */
enum {
  MB_OK = 0,
  MB_INVALID_ARGUMENT = 1, /* an index or a name that does not exist, a wrong number of things */
  MB_BAD_PLAN = 2,         /* the plan's bytes are damaged or of another version; where a step meets damage that
                              mb_create did not, gradients and what the call updates may have changed */
  MB_MISSING_KERNEL = 3,   /* the plan needs a kernel or feature this library was built without */
  MB_BAD_CHECKPOINT = 4,   /* the checkpoint's bytes are damaged, or it belongs to another model */
  MB_OUT_OF_MEMORY = 5,    /* the arena is smaller than these input sizes need */
  MB_BAD_SHAPE = 6,        /* an input's rank, dimensions or element type are not what the model takes */
  MB_BAD_VALUE = 7,  /* data out of range, such as a label that is no class; gradients or a loss that are not finite */
  MB_IO = 8,         /* a file could not be read or written */
  MB_UNSUPPORTED = 9 /* this library was built without that part (evaluation, optimizer, ...) */
};

/* Element types, numbered as in ONNX. */
enum {
  MB_FLOAT = 1,
  MB_UINT8 = 2,
  MB_INT8 = 3,
  MB_UINT16 = 4,
  MB_INT16 = 5,
  MB_INT32 = 6,
  MB_INT64 = 7,
  MB_STRING = 8,
  MB_BOOL = 9,
  MB_FLOAT16 = 10,
  MB_DOUBLE = 11,
  MB_UINT32 = 12,
  MB_UINT64 = 13,
  MB_BFLOAT16 = 16
};

#define MB_MAX_RANK 8

/* A dense row-major tensor. Inputs are read in place during the call and never kept. */
typedef struct mb_tensor {
  void* data;
  int32_t type; /* MB_FLOAT, ... */
  int32_t rank; /* 0 for a scalar */
  int32_t dims[MB_MAX_RANK];
} mb_tensor;

enum { MB_TRAIN = 0, MB_EVAL = 1, MB_OPTIMIZER = 2, MB_INITIALIZE = 3, MB_TRAIN_AND_UPDATE = 4 }; /* graphs */

/* The role of a parameter: trained by the optimizer, changed by kernels (running statistics), or only read. */
enum { MB_TRAINABLE = 1, MB_STATE = 2, MB_FROZEN = 3 };

/* A parameter; or an input or output, where only name and value matter. */
typedef struct mb_parameter {
  const char* name;
  mb_tensor value;
  void* gradient; /* same shape and type as the value; null unless trainable */
  int32_t kind;   /* MB_TRAINABLE, MB_STATE or MB_FROZEN */
} mb_parameter;

/* Threads, in libraries that have them (`minbuild reduce --threads`); all others ignore these. Results have the same bits
 * for any number of threads. A pool calls task(work, i) once for every i below `count`, on whichever threads, and returns
 * when all of these calls have. It is faster where an index keeps its thread. */
typedef void (*mb_task)(void* work, int32_t index);
typedef void (*mb_parallel)(void* user, mb_task task, void* work, int32_t count);

/* Zeros are the defaults. */
typedef struct mb_options {
  void* arena;            /* memory for the session, 16-byte aligned; null to let the library map its own */
  size_t arena_size;      /* its bytes; mb_create leaves here how many are needed */
  const int32_t* symbols; /* largest size of each free dimension, in plan order; null for the plan's default */
  size_t symbol_count;
  char error[160];               /* receives the text of a failed creation */
  int32_t accept_any_checkpoint; /* the session's, see mb_session */
  int32_t threads;               /* most threads of a call; 0: as many as the library and its machine have */
  mb_parallel parallel;          /* the program's own pool; null for threads that the library makes */
  void* parallel_user;           /* its first argument */
} mb_options;

/* The progress of training, and the settings of the next step. */
typedef struct mb_progress {
  int64_t seed;        /* of the next node that draws random numbers and has no seed of its own; counts up, from 0 */
  int64_t step;        /* optimizer steps taken, restored from checkpoints */
  float learning_rate; /* 0.001 until set */
  float unused;
} mb_progress;

/* The part of a session that is not the library's own. */
typedef struct mb_session {
  mb_progress* progress;
  char* error;                /* text of the last failure: what was found where and what was expected; empty before any.
                                 In libraries with --error-messages codes it is one, which `minbuild explain` puts into words */
  int32_t replaces_gradients; /* whether the next train step replaces the gradients instead of adding to them */
  int32_t accepts_any_checkpoint; /* whether checkpoints of other models are loaded, too, if they have parameters of the
                                     same names, types and shapes; 0 unless mb_options says so */
} mb_session;

/* Creates a session from memory. `plan` and `checkpoint` must be 8-byte aligned and outlive the session, which reads
 * constants and frozen parameters from them in place. A library that has its plan compiled in (--flavor compiled) takes
 * none: null, of 0 bytes; all others need one. `checkpoint` may be null: parameters start at zero.
 * `options` is not null. With a null `session` only finds the bytes that are needed; a failure leaves `session` alone. */
MB_API mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                           mb_options* options, mb_session** session);

/* The same from files, which the session maps and unmaps itself; a null path is that of no file. Not in libraries built
 * without files. */
MB_API mb_status mb_create_from_files(const char* plan, const char* checkpoint, mb_options* options,
                                      mb_session** session);
MB_API void mb_destroy(mb_session* session);

/* Runs a graph. Denormal numbers count as zero meanwhile where the processor can do that (x86-64, Arm): the floating-point
 * control of the calling thread is changed for the time of the call and restored (--denormals keep leaves it alone). MB_TRAIN and MB_EVAL take their inputs in the order of mb_input. */
MB_API mb_status mb_run(mb_session* session, int graph, const mb_tensor* inputs, size_t input_count);

/* The entry of a list of tensors at `index`, which is less than its length if this is no MB_INVALID_ARGUMENT. The inputs and
 * outputs are those of MB_TRAIN, then those of MB_EVAL. */
enum { MB_INPUTS = 0, MB_OUTPUTS = 1, MB_PARAMETERS = 4 };
MB_API mb_status mb_get(const mb_session* session, int list, size_t index, mb_parameter* found);

/* Replaces parameters, and optimizer state where the checkpoint has it, from an ORT checkpoint in memory. One that a
 * session wrote is refused, MB_BAD_CHECKPOINT, if a bit of it has changed or if it is another model's, and with optimizer
 * state it brings the learning rate and the seeds: training goes on as if it had not stopped (--checkpoint-checks).
 * MB_FROZEN parameters are read from it in place from then on: it has to outlive the session, or the next checkpoint that
 * is loaded, if mb_reads_from says so. Null is refused like any memory without a checkpoint. */
MB_API mb_status mb_load_checkpoint(mb_session* session, const void* checkpoint, size_t size);

/* Writes an ORT checkpoint; not in libraries reduced with --checkpoint-writing off. The sink returns 0 to go on; anything else stops with MB_IO. */
typedef int (*mb_sink)(void* user, const void* bytes, size_t size);
MB_API mb_status mb_write_checkpoint(mb_session* session, int include_optimizer, mb_sink sink, void* user);
/* The same into a file: written beside it, synced, then moved over it, so the old file survives any failure. Not in
 * libraries built without files. */
MB_API mb_status mb_save_checkpoint(mb_session* session, const char* path, int include_optimizer);

/* Parts that a library has only if asked for (`minbuild reduce --with properties,buffers,export`).
 *
 * properties: numbers and texts kept with the model, MB_INT64, MB_FLOAT or MB_STRING. They travel in checkpoints, and so
 * does the learning rate as "minbuild.learning_rate", which loading sets. Names and texts stay valid until properties
 * change; a session has room for that size, and anything larger is MB_OUT_OF_MEMORY. */
typedef struct mb_property {
  const char* name;
  const char* text; /* of a string */
  int64_t integer;
  float real;
  int32_t type; /* 0: in mb_set_property, removes the property */
} mb_property;
/* The property at `index`, which is less than their number if this is no MB_INVALID_ARGUMENT. */
MB_API mb_status mb_get_property(const mb_session* session, size_t index, mb_property* found);
/* Adds a property, or replaces the one of that name, whatever its type. */
MB_API mb_status mb_set_property(mb_session* session, const mb_property* property);

/* buffers: parameters as one array of floats, in the order of the training graph's inputs; all of them must be MB_FLOAT.
 * A library with this part also takes nominal checkpoints, which have names only: until an array fills all parameters,
 * everything but that is MB_BAD_CHECKPOINT. Copying wants `count` exact; counting sets it. Copying an array to all
 * parameters writes to frozen ones where their checkpoint is. */
enum { MB_COUNT_PARAMETERS = 0, MB_FROM_PARAMETERS = 1, MB_TO_PARAMETERS = 2 };
MB_API mb_status mb_parameter_buffer(mb_session* session, int trainable_only, int what, float* buffer, size_t* count);

/* export: an ONNX file for inference with the parameters as they are. `template_bytes` are the bytes of the package's
 * model/inference.template, 4-byte aligned. */
MB_API mb_status mb_export_model(const mb_session* session, const void* template_bytes, size_t template_size,
                                 mb_sink sink, void* user);
/* The same from file to file, replaced as by mb_save_checkpoint. Not in libraries built without files. */
MB_API mb_status mb_export_to_file(mb_session* session, const char* template_path, const char* path);

/* Bytes of arena a session needs when its free dimensions grow up to `symbols` (null: the plan's default). */
static inline mb_status mb_arena_size(const void* plan, size_t plan_size, const int32_t* symbols, size_t symbol_count,
                                      size_t* bytes) {
  mb_options options = {NULL, 0, symbols, symbol_count, "", 0, 0, NULL, NULL};
  mb_status status = mb_create(plan, plan_size, NULL, 0, &options, NULL);
  *bytes = options.arena_size;
  return status;
}

/* Not every machine this runs on has a C library. */
static inline void mb_copy(void* to, const void* from, size_t size) {
  size_t i;
  for (i = 0; i < size; ++i) ((unsigned char*)to)[i] = ((const unsigned char*)from)[i];
}
static inline int mb_same_text(const char* a, const char* b) {
  for (; *a == *b; ++a, ++b)
    if (*a == 0) return 1;
  return 0;
}

/* Loads a checkpoint of any model whose parameters have the same names, types and shapes. */
static inline mb_status mb_load_any_checkpoint(mb_session* session, const void* checkpoint, size_t size) {
  const int32_t accepts = session->accepts_any_checkpoint;
  mb_status status;
  session->accepts_any_checkpoint = 1;
  status = mb_load_checkpoint(session, checkpoint, size);
  session->accepts_any_checkpoint = accepts;
  return status;
}

static inline const char* mb_last_error(const mb_session* session) { return session->error; }

/* Forward and backward over one batch. Adds to the gradients, or replaces them after mb_lazy_reset_grad. */
static inline mb_status mb_train_step(mb_session* session, const mb_tensor* inputs, size_t input_count) {
  return mb_run(session, MB_TRAIN, inputs, input_count);
}
static inline mb_status mb_eval_step(mb_session* session, const mb_tensor* inputs, size_t input_count) {
  return mb_run(session, MB_EVAL, inputs, input_count);
}
/* Updates the parameters from the gradients and counts a step. MB_BAD_VALUE where a gradient or the learning rate is NaN or
 * infinite, and names it: then nothing has changed, and mb_lazy_reset_grad makes the next step start without that gradient
 * (--finite-checks off leaves this out). Models with a dynamic loss scale make no update then, which is MB_OK and does not
 * count. MB_UNSUPPORTED where the model carries its own training
 * (ONNX training information): mb_train_step then updates parameters, which are MB_STATE, by itself. */
static inline mb_status mb_optimizer_step(mb_session* session) { return mb_run(session, MB_OPTIMIZER, NULL, 0); }
/* Forward, backward and an update of each parameter as soon as its gradient is known, which counts a step: the bits of
 * mb_lazy_reset_grad, mb_train_step and mb_optimizer_step without memory for gradients. Only in libraries reduced with
 * --updates fused, in which mb_train_step and mb_optimizer_step are MB_UNSUPPORTED, parameters have no gradient, and inputs
 * and outputs are those of MB_TRAIN; MB_UNSUPPORTED in all others. A refused batch or learning rate changes nothing. Where
 * a gradient is NaN or infinite the call ends with MB_BAD_VALUE and names the parameter; others have been updated, so that
 * the session takes nothing but mb_load_checkpoint from then on (MB_BAD_CHECKPOINT). */
static inline mb_status mb_train_and_update(mb_session* session, const mb_tensor* inputs, size_t input_count) {
  return mb_run(session, MB_TRAIN_AND_UPDATE, inputs, input_count);
}
/* Gives parameters and state new first values, as the model's own training information says; what that leaves out keeps
 * its value. MB_UNSUPPORTED for all other models. */
static inline mb_status mb_initialize(mb_session* session) { return mb_run(session, MB_INITIALIZE, NULL, 0); }
static inline void mb_lazy_reset_grad(mb_session* session) { session->replaces_gradients = 1; }

/* One that is NaN or infinite is MB_BAD_VALUE, and the old one stays. */
static inline mb_status mb_set_learning_rate(mb_session* session, float rate) {
  uint32_t bits;
  mb_copy(&bits, &rate, sizeof bits);
  if ((bits & 0x7f800000) == 0x7f800000) {
    mb_copy(session->error, "not finite: learning rate", 26);
    return MB_BAD_VALUE;
  }
  session->progress->learning_rate = rate;
  return MB_OK;
}
static inline float mb_learning_rate(const mb_session* session) { return session->progress->learning_rate; }
static inline int64_t mb_step_count(const mb_session* session) { return session->progress->step; }
/* The seed of the next node that draws random numbers and has no seed of its own; the one after it takes the next number. */
static inline void mb_set_seed(mb_session* session, int64_t seed) { session->progress->seed = seed; }
static inline int64_t mb_seed(const mb_session* session) { return session->progress->seed; }

/* Inputs and outputs of MB_TRAIN or MB_EVAL. `data` of an input is null; of an output it points into the arena and is
 * valid until the next step. A free dimension reads -1 in an input. */
static inline mb_status mb_get_port(const mb_session* session, int list, size_t index, const char** name,
                                    mb_tensor* tensor) {
  mb_parameter found;
  mb_status status = mb_get(session, list, index, &found);
  *name = found.name;
  *tensor = found.value;
  return status;
}
static inline mb_status mb_input(const mb_session* session, int graph, size_t index, const char** name,
                                 mb_tensor* tensor) {
  return mb_get_port(session, 2 * graph + MB_INPUTS, index, name, tensor);
}
static inline mb_status mb_output(const mb_session* session, int graph, size_t index, const char** name,
                                  mb_tensor* tensor) {
  return mb_get_port(session, 2 * graph + MB_OUTPUTS, index, name, tensor);
}

static inline size_t mb_count(const mb_session* session, int list) {
  mb_parameter found;
  size_t count = 0;
  while (mb_get(session, list, count, &found) == MB_OK) ++count;
  return count;
}
static inline size_t mb_input_count(const mb_session* session, int graph) {
  return mb_count(session, 2 * graph + MB_INPUTS);
}
static inline size_t mb_output_count(const mb_session* session, int graph) {
  return mb_count(session, 2 * graph + MB_OUTPUTS);
}
static inline size_t mb_parameter_count(const mb_session* session) { return mb_count(session, MB_PARAMETERS); }

/* Parameters by index or by name. Values may be written through `value.data`, except those of MB_FROZEN parameters in a
 * checkpoint the caller gave as read-only memory. */
static inline mb_status mb_get_parameter(const mb_session* session, size_t index, mb_parameter* parameter) {
  return mb_get(session, MB_PARAMETERS, index, parameter);
}
static inline mb_status mb_find_parameter(const mb_session* session, const char* name, mb_parameter* parameter) {
  size_t i;
  for (i = 0; mb_get_parameter(session, i, parameter) == MB_OK; ++i)
    if (mb_same_text(parameter->name, name)) return MB_OK;
  return MB_INVALID_ARGUMENT;
}

/* 1 if parameters are read where this memory is, which has to stay then; else 0. */
static inline int mb_reads_from(const mb_session* session, const void* memory, size_t size) {
  mb_parameter found;
  size_t i;
  for (i = 0; mb_get_parameter(session, i, &found) == MB_OK; ++i)
    if ((uintptr_t)found.value.data - (uintptr_t)memory < size) return 1;
  return 0;
}

/* Finds the parameter that `tensor` is for: type, rank and dimensions must be the parameter's, else this is MB_BAD_SHAPE. */
static inline mb_status mb_match_parameter(const mb_session* session, const char* name, const mb_tensor* tensor,
                                           mb_parameter* found, size_t* bytes) {
  static const uint8_t sizes[17] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
  int32_t i;
  mb_status status = mb_find_parameter(session, name, found);
  if (status != MB_OK) return status;
  if (found->value.type != tensor->type || found->value.rank != tensor->rank) return MB_BAD_SHAPE;
  *bytes = sizes[found->value.type];
  for (i = 0; i < tensor->rank; ++i) {
    if (found->value.dims[i] != tensor->dims[i]) return MB_BAD_SHAPE;
    *bytes *= (size_t)tensor->dims[i];
  }
  return MB_OK;
}
/* Copies a parameter's values into `to`, or from `from`. */
static inline mb_status mb_read_parameter(const mb_session* session, const char* name, const mb_tensor* to) {
  mb_parameter found;
  size_t bytes;
  mb_status status = mb_match_parameter(session, name, to, &found, &bytes);
  if (status == MB_OK) mb_copy(to->data, found.value.data, bytes);
  return status;
}
static inline mb_status mb_update_parameter(mb_session* session, const char* name, const mb_tensor* from) {
  mb_parameter found;
  size_t bytes;
  mb_status status = mb_match_parameter(session, name, from, &found, &bytes);
  if (status == MB_OK) mb_copy(found.value.data, from->data, bytes);
  return status;
}

/* The learning rate rises from 0 to `initial` during `warmup` optimizer steps, then falls to 0 at step `total`. */
typedef struct mb_linear_schedule {
  int64_t warmup, total;
  float initial;
} mb_linear_schedule;
/* Starts with the initial rate, which stays until the first mb_schedule_step. */
static inline void mb_schedule_linear(mb_session* session, mb_linear_schedule* schedule, int64_t warmup, int64_t total,
                                      float initial) {
  schedule->warmup = warmup;
  schedule->total = total;
  schedule->initial = initial;
  mb_set_learning_rate(session, initial);
}
/* Sets the rate for the next optimizer step. */
static inline void mb_schedule_step(mb_session* session, const mb_linear_schedule* schedule) {
  int64_t done = mb_step_count(session), part = done, whole = schedule->warmup;
  if (done >= schedule->warmup) part = schedule->total - done, whole = schedule->total - schedule->warmup;
  if (part < 0) part = 0;
  if (whole < 1) whole = 1;
  mb_set_learning_rate(session, schedule->initial * ((float)part / (float)whole));
}

/* Of the part "properties". */
static inline mb_status mb_find_property(const mb_session* session, const char* name, mb_property* found) {
  size_t i;
  for (i = 0; mb_get_property(session, i, found) == MB_OK; ++i)
    if (mb_same_text(found->name, name)) return MB_OK;
  return MB_INVALID_ARGUMENT;
}

/* Of the part "buffers". */
static inline mb_status mb_parameters_size(mb_session* session, int trainable_only, size_t* count) {
  return mb_parameter_buffer(session, trainable_only, MB_COUNT_PARAMETERS, NULL, count);
}
static inline mb_status mb_copy_parameters_to_buffer(mb_session* session, float* buffer, size_t count,
                                                     int trainable_only) {
  return mb_parameter_buffer(session, trainable_only, MB_FROM_PARAMETERS, buffer, &count);
}
static inline mb_status mb_copy_buffer_to_parameters(mb_session* session, const float* buffer, size_t count,
                                                     int trainable_only) {
  return mb_parameter_buffer(session, trainable_only, MB_TO_PARAMETERS, (float*)buffer, &count);
}

#ifdef __cplusplus
}
#endif
#endif /* MINBUILD_TRAINER_H_ */
