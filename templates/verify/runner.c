/* Performs a trial: reads `plan`, `script` and checkpoints from the current folder, does what the script says with the trainer it is
 * linked with, and sends what is to be recorded, each piece with its size in front, and last how deep the stack was in
 * each kind of call. The script is written by minbuild/verify/runner_protocol.py. */
#include "host.h"
#include "minbuild/trainer.h"

/* MB_SAVES: whether the trainer writes checkpoints; MB_STEPS: whether it is watched step by step. */
#include "choices.h"

/* MB_MEASURES: whether noise can be measured, which takes memory. */
#if MB_STEPS
#include "steps.h"
#else
#define steps_choose(what, seed, garbage)
#define steps_watch(start, size)
#define steps_unwatch(count)
#define steps_begin()
#endif
enum { WATCHED = 3 }; /* beside inputs: the session, the plan, the checkpoint */

enum {
  CREATE,
  RATE,
  TRAIN,
  EVALUATE,
  OPTIMIZER,
  RESET,
  GRADIENTS,
  PARAMETERS,
  SAVE,
  INITIALIZE,
  COPY,
  TRAIN_AND_UPDATE,
  VERBS
};
enum { MAX_INPUTS = 64, MAX_SYMBOLS = 64 };

/* How deep the stack is: what lies below is painted before a call, and looked at after it. A call that takes all
 * that is painted is said to take just that. */
enum { STRETCH = 512 << 10, PAINT = 0xb5 };
static uintptr_t painted;      /* where the paint begins, at the lowest address */
static uint32_t depths[VERBS]; /* the deepest of each kind of call */

#define APART __attribute__((noinline))

static APART void paint(void) {
  volatile unsigned char room[STRETCH];
  size_t i;
  for (i = 0; i < sizeof room; ++i) room[i] = PAINT;
  painted = (uintptr_t)room;
}

/* From where a call was made down to the deepest byte it changed. */
static APART void measure(uintptr_t from, int verb) {
  const volatile unsigned char* deepest = (const volatile unsigned char*)painted;
  while ((uintptr_t)deepest < from && *deepest == PAINT) ++deepest;
  if (depths[verb] < from - (uintptr_t)deepest) depths[verb] = (uint32_t)(from - (uintptr_t)deepest);
}

/* About where the stack ends in the function that says so. */
#define HERE ((uintptr_t)__builtin_frame_address(0))

static mb_session* session;
static mb_options options;
static int by_steps;            /* STEPS_RUN is 0 */
static const unsigned char* at; /* in the script */

static void fail(const char* what) { host_fail(what, session ? mb_last_error(session) : options.error); }

static void must(mb_status status, const char* what) {
  if (status != MB_OK) fail(what);
}

static void copy(void* to, const void* from, size_t size) {
  size_t i;
  for (i = 0; i < size; ++i) ((unsigned char*)to)[i] = ((const unsigned char*)from)[i];
}

static void fill(void* memory, int value, size_t size) {
  size_t i;
  for (i = 0; i < size; ++i) ((unsigned char*)memory)[i] = (unsigned char)value;
}

static uint32_t word(void) {
  uint32_t value;
  copy(&value, at, 4);
  at += 4;
  return value;
}

/* An aligned copy of the next piece of data. */
static unsigned char* blob(uint32_t* size) {
  unsigned char* data;
  *size = word();
  data = host_take(*size);
  copy(data, at, *size);
  at += *size;
  return data;
}

static void record(const void* data, size_t size) {
  uint32_t head = (uint32_t)size;
  host_write(&head, 4);
  host_write(data, size);
}

static size_t bytes_of(const mb_tensor* tensor) {
  static const unsigned char sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
  size_t bytes = sizes[tensor->type];
  int i;
  for (i = 0; i < tensor->rank; ++i) bytes *= (size_t)tensor->dims[i];
  return bytes;
}

static APART mb_status created(const void* plan, size_t plan_size, const void* checkpoint, size_t size) {
  mb_status status;
  paint();
  status = mb_create(plan, plan_size, checkpoint, size, &options, &session);
  measure(HERE, CREATE);
  return status;
}

static void create(const unsigned char* plan, size_t plan_size, int garbage, const int32_t* sizes, uint32_t count) {
  char name[] = "checkpoint.0";
  size_t arena_size, size;
  unsigned char* checkpoint;
  name[sizeof name - 2] = (char)('0' + word());
  checkpoint = host_read(name, &size);
  fill(&options, 0, sizeof options);
  if (session) mb_destroy(session);
  session = NULL;
  steps_unwatch(0);
  must(mb_arena_size(plan, plan_size, sizes, count, &arena_size), "mb_arena_size");
  options.arena = host_take(arena_size + 64);
  options.arena = (void*)(((uintptr_t)options.arena + 63) & ~(uintptr_t)63);
  fill(options.arena, garbage, arena_size);
  options.arena_size = arena_size;
  options.symbols = sizes;
  options.symbol_count = count;
  options.threads = by_steps; /* watched steps run undivided; whole runs by as many threads as there are */
  host_pass(checkpoint, size);
  must(created(plan, plan_size, checkpoint, size), "mb_create");
  host_forget(checkpoint, size);
  steps_watch(options.arena, arena_size);
  steps_watch((void*)(uintptr_t)plan, plan_size);
  steps_watch(checkpoint, size);
}

/* Calls whose stack is measured; what is of the caller's own is little. */
static APART mb_status step(int verb, int graph, const mb_tensor* tensors, size_t count) {
  mb_status status;
  steps_begin();
  paint();
  status = mb_run(session, graph, tensors, count);
  measure(HERE, verb);
  return status;
}

/* A batch for a graph that takes one; `ports` is the graph whose outputs it has. */
static void run(int verb, int graph, int ports, int recorded) {
  mb_tensor tensors[MAX_INPUTS];
  mb_tensor output;
  const char* name;
  uint32_t count = word(), i, j, size;
  if (count > MAX_INPUTS) fail("inputs");
  for (i = 0; i < count; ++i) {
    tensors[i].type = (int32_t)word();
    tensors[i].rank = (int32_t)word();
    for (j = 0; j < MB_MAX_RANK; ++j) tensors[i].dims[j] = (int32_t)word();
    tensors[i].data = blob(&size);
  }
  for (i = 0; i < count; ++i) steps_watch(tensors[i].data, bytes_of(&tensors[i]));
  must(step(verb, graph, tensors, count), "mb_run");
  steps_unwatch(WATCHED);
  for (i = count; i-- > 0;) host_give_back(tensors[i].data);
  for (i = 0; recorded && i < mb_output_count(session, ports); ++i) {
    must(mb_output(session, ports, i, &name, &output), "mb_output");
    record(output.data, bytes_of(&output));
  }
}

static void parameters(int gradients) {
  mb_parameter parameter;
  size_t i;
  for (i = 0; i < mb_parameter_count(session); ++i) {
    must(mb_get_parameter(session, i, &parameter), "mb_get_parameter");
    if (gradients && parameter.gradient) record(parameter.gradient, bytes_of(&parameter.value));
    if (!gradients) record(parameter.value.data, bytes_of(&parameter.value));
  }
}

/* Values become their own gradients. */
static void copy_to_gradients(void) {
  mb_parameter parameter;
  size_t i;
  for (i = 0; i < mb_parameter_count(session); ++i) {
    must(mb_get_parameter(session, i, &parameter), "mb_get_parameter");
    if (parameter.gradient) copy(parameter.gradient, parameter.value.data, bytes_of(&parameter.value));
  }
}

#if MB_SAVES
/* A checkpoint comes in pieces, and its size has to go first: so it is written twice. */
static size_t saved_size;

static int count_bytes(void* user, const void* bytes, size_t size) {
  (void)user, (void)bytes;
  saved_size += size;
  return 0;
}

static int write_bytes(void* user, const void* bytes, size_t size) {
  (void)user;
  host_write(bytes, size);
  return 0;
}

static APART mb_status count_saved(void) {
  mb_status status;
  paint();
  status = mb_write_checkpoint(session, 1, count_bytes, NULL);
  measure(HERE, SAVE);
  return status;
}

static void save(int recorded) {
  uint32_t head;
  saved_size = 0;
  must(count_saved(), "mb_write_checkpoint");
  if (!recorded) return;
  head = (uint32_t)saved_size;
  host_write(&head, 4);
  must(mb_write_checkpoint(session, 1, write_bytes, NULL), "mb_write_checkpoint");
}
#else
static void save(int recorded) {
  (void)recorded;
  host_fail("save", "the trainer was built without checkpoint writing");
}
#endif

int main(void) {
  size_t plan_size, script_size;
  const unsigned char* plan = host_read("plan", &plan_size);
  const unsigned char* script = host_read("script", &script_size);
  int32_t sizes[MAX_SYMBOLS];
  uint32_t count, i;
  int garbage;
  if (plan_size == 0) plan = NULL; /* it is compiled in */
  at = script;
  garbage = (int)word();
  count = word(); /* what to do at each step, and the seed of that */
  steps_choose((int)(count & 7), (unsigned)count | 1, garbage);
  by_steps = (count & 7) != 0;
  count = word();
  if (count > MAX_SYMBOLS) fail("free dimensions");
  for (i = 0; i < count; ++i) sizes[i] = (int32_t)word();
  while (at < script + script_size) {
    uint32_t verb = word(), rate;
    int recorded = (int)word();
    float value;
    switch (verb) {
      case CREATE: create(plan, plan_size, garbage, sizes, count); break;
      case RATE:
        rate = word();
        copy(&value, &rate, 4);
        mb_set_learning_rate(session, value);
        break;
      case TRAIN: run(TRAIN, MB_TRAIN, MB_TRAIN, recorded); break;
      case TRAIN_AND_UPDATE: run(TRAIN_AND_UPDATE, MB_TRAIN_AND_UPDATE, MB_TRAIN, recorded); break;
      case EVALUATE: run(EVALUATE, MB_EVAL, MB_EVAL, recorded); break;
      case OPTIMIZER: must(step(OPTIMIZER, MB_OPTIMIZER, NULL, 0), "mb_optimizer_step"); break;
      case INITIALIZE: must(step(INITIALIZE, MB_INITIALIZE, NULL, 0), "mb_initialize"); break;
      case RESET: mb_lazy_reset_grad(session); break;
      case GRADIENTS: parameters(1); break;
      case PARAMETERS: parameters(0); break;
      case SAVE: save(recorded); break;
      case COPY: copy_to_gradients(); break;
      default: fail("script");
    }
  }
  record(depths, sizeof depths);
  return host_finish() ? 0 : 3;
}
