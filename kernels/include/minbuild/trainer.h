/* minbuild trainer: the public C API. One session trains one model; sessions share nothing and may run on different
 * threads. No function allocates after mb_create. Every function that can fail returns an mb_status and leaves the
 * session as it was before the call unless it says otherwise. */
#ifndef MINBUILD_TRAINER_H_
#define MINBUILD_TRAINER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MB_API __declspec(dllexport)
#else
#define MB_API __attribute__((visibility("default")))
#endif

typedef uint8_t mb_status;
enum {
  MB_OK = 0,
  MB_INVALID_ARGUMENT = 1, /* a null pointer, an index or a name that does not exist */
  MB_BAD_PLAN = 2,         /* the plan's bytes are damaged or of another version */
  MB_MISSING_KERNEL = 3,   /* the plan needs a kernel or feature this library was built without */
  MB_BAD_CHECKPOINT = 4,   /* the checkpoint's bytes are damaged, or it belongs to another model */
  MB_OUT_OF_MEMORY = 5,    /* the arena is smaller than these input sizes need */
  MB_BAD_SHAPE = 6,        /* an input's rank, dimensions or element type are not what the model takes */
  MB_BAD_VALUE = 7,        /* data out of range, such as a label that is no class */
  MB_IO = 8,               /* a file could not be read or written */
  MB_UNSUPPORTED = 9       /* this library was built without that part (evaluation, optimizer, ...) */
};

/* Element types, numbered as in ONNX. */
enum {
  MB_FLOAT = 1, MB_UINT8 = 2, MB_INT8 = 3, MB_UINT16 = 4, MB_INT16 = 5, MB_INT32 = 6, MB_INT64 = 7, MB_BOOL = 9,
  MB_FLOAT16 = 10, MB_DOUBLE = 11, MB_UINT32 = 12, MB_UINT64 = 13, MB_BFLOAT16 = 16
};

#define MB_MAX_RANK 8

/* A dense row-major tensor. Inputs are read in place during the call and never kept. */
typedef struct mb_tensor {
  void* data;
  int32_t type;              /* MB_FLOAT, ... */
  int32_t rank;              /* 0 for a scalar */
  int32_t dims[MB_MAX_RANK];
} mb_tensor;

/* Which graph a question is about. */
enum { MB_TRAIN = 0, MB_EVAL = 1 };

/* How a parameter lives: trained by the optimizer, changed by kernels (running statistics), or only read. */
enum { MB_TRAINABLE = 3, MB_STATE = 4, MB_FROZEN = 5 };

typedef struct mb_parameter {
  const char* name;
  mb_tensor value;
  void* gradient; /* same shape and type as the value; null unless trainable */
  int32_t kind;   /* MB_TRAINABLE, MB_STATE or MB_FROZEN */
} mb_parameter;

typedef struct mb_options {
  void* arena;            /* memory for the session, 16-byte aligned; null to let the library map its own */
  size_t arena_size;
  const int32_t* symbols; /* largest size of each free dimension, in plan order; null for the plan's default */
  size_t symbol_count;
  char* error;            /* receives the text of a failed creation; may be null */
  size_t error_size;
} mb_options;

typedef struct mb_session mb_session;

/* Bytes of arena a session needs when its free dimensions grow up to `symbols` (null: the plan's default). */
MB_API mb_status mb_arena_size(const void* plan, size_t plan_size, const int32_t* symbols, size_t symbol_count,
                               size_t* bytes);

/* Creates a session from memory. `plan` and `checkpoint` must be 8-byte aligned and outlive the session, which reads
 * constants and frozen parameters from them in place. `checkpoint` may be null: parameters start at zero.
 * `options` may be null. */
MB_API mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                           const mb_options* options, mb_session** session);

/* The same from files, which the session maps and unmaps itself. Not in libraries built without files. */
MB_API mb_status mb_create_from_files(const char* plan, const char* checkpoint, const mb_options* options,
                                      mb_session** session);
MB_API void mb_destroy(mb_session* session);

/* Text of the session's last failure: what was found where and what was expected. Empty before any failure. */
MB_API const char* mb_last_error(const mb_session* session);

/* Forward and backward over one batch. Adds to the gradients, or replaces them after mb_lazy_reset_grad.
 * `inputs` stand in the order of mb_input. */
MB_API mb_status mb_train_step(mb_session* session, const mb_tensor* inputs, size_t input_count);
MB_API mb_status mb_eval_step(mb_session* session, const mb_tensor* inputs, size_t input_count);
/* Updates the parameters from the gradients and counts a step. */
MB_API mb_status mb_optimizer_step(mb_session* session);
/* The next train step replaces the gradients instead of adding to them. */
MB_API void mb_lazy_reset_grad(mb_session* session);

MB_API void mb_set_learning_rate(mb_session* session, float rate);
MB_API float mb_learning_rate(const mb_session* session); /* 0.001 until set */
MB_API int64_t mb_step_count(const mb_session* session);  /* optimizer steps taken, restored from checkpoints */

/* The seed of the next node that draws random numbers and has no seed of its own; the one after it takes the next number.
 * 0 until set. Not in libraries whose models draw none. */
MB_API void mb_set_seed(mb_session* session, int64_t seed);
MB_API int64_t mb_seed(const mb_session* session);

/* Inputs and outputs of a graph. `data` of an input is null; of an output it points into the arena and is valid until
 * the next step. A free dimension reads -1 in an input. */
MB_API size_t mb_input_count(const mb_session* session, int graph);
MB_API mb_status mb_input(const mb_session* session, int graph, size_t index, const char** name, mb_tensor* tensor);
MB_API size_t mb_output_count(const mb_session* session, int graph);
MB_API mb_status mb_output(const mb_session* session, int graph, size_t index, const char** name, mb_tensor* tensor);

/* Parameters by index, or by name with mb_find_parameter. Values may be written through `value.data`, except those of
 * MB_FROZEN parameters in a checkpoint the caller gave as read-only memory. */
MB_API size_t mb_parameter_count(const mb_session* session);
MB_API mb_status mb_get_parameter(const mb_session* session, size_t index, mb_parameter* parameter);
MB_API mb_status mb_find_parameter(const mb_session* session, const char* name, mb_parameter* parameter);

/* Replaces parameters, and optimizer state where the checkpoint has it, from an ORT checkpoint in memory. */
MB_API mb_status mb_load_checkpoint(mb_session* session, const void* checkpoint, size_t size);

/* Writes an ORT checkpoint. The sink returns 0 to go on; anything else stops with MB_IO. */
typedef int (*mb_sink)(void* user, const void* bytes, size_t size);
MB_API mb_status mb_write_checkpoint(mb_session* session, int include_optimizer, mb_sink sink, void* user);
/* The same into a file: written beside it, synced, then moved over it, so the old file survives any failure. */
MB_API mb_status mb_save_checkpoint(mb_session* session, const char* path, int include_optimizer);

#ifdef __cplusplus
}
#endif
#endif /* MINBUILD_TRAINER_H_ */
