// Creating a session inside one piece of memory, and running its graphs.
#include "runtime/session.h"

#include "runtime/check_finite.h"
#include "runtime/flush_denormals.h"
#if !MB_COMPILED
#include "runtime/interpreted_steps.h"
#endif
#include "runtime/memory.h"

namespace minbuild {

#if !MB_COMPILED
uintptr_t Session::place(uintptr_t memory) {
  region_count = bound(count[plan::kParameters]);
  uint32_t words = value_count();
#if MB_SHARED_NAMES
  words += name_bytes / sizeof(Size) + 1;
#endif
  const Layout layout = layout_of(sizeof(Session), sizeof(Span), region_count, words, sizeof(Size));
  regions = reinterpret_cast<Span*>(memory + layout.regions);
  values = reinterpret_cast<Size*>(memory + layout.values);
#if MB_SHARED_NAMES
  if (memory != 0) expand_names(reinterpret_cast<char*>(values + value_count()));
#endif
  memory += layout.persistent;
  progress = reinterpret_cast<mb_progress*>((memory + persistent_bytes - sizeof(mb_progress)) & ~uintptr_t{7});
  return memory;
}
#endif

mb_status Session::lay_out() {
  Size need = evaluate();
  if (need < 0) return fail(this, Failure::kSizes);
  if (static_cast<size_t>(need) > regions[kArena].size)
    return fail(this, Failure::kRoom, static_cast<intptr_t>(need), static_cast<intptr_t>(regions[kArena].size));
  return MB_OK;
}

#if MB_FUSED_UPDATES
mb_status fail_step(Session* s, mb_status status, const Tensor* parameter, uint32_t step, const char* kernel) {
  if (status == MB_BAD_VALUE) return fail(s, Failure::kStepValues, step, word_of(kernel));
  // Parameters before this one, in whatever order, have been updated. Nothing of the state is of any use.
  s->broken = true;
  clear_bytes(s->regions[kTrained].data + kFirstMoment * s->trainable_bytes,
              stored_moments(s) * size_t{s->trainable_bytes});
  if (status != kNotFiniteStatus) return fail(s, Failure::kStepShapes, step, word_of(kernel));
  mb_parameter found;
  for (uint32_t i = 0; mb_get(s, MB_PARAMETERS, i, &found) == MB_OK; ++i)
    if (found.value.data == parameter->data) break;
  return fail(s, Failure::kFinite, word_of(found.name));
}
#endif

}  // namespace minbuild

using namespace minbuild;

extern "C" {

#if !MB_COMPILED
mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                    mb_options* options, mb_session** session) {
  Session room, *first = &room;  // what is known before there is memory for more
  // Else the compiler addresses each member from the far end of the stack: 32 bytes more in mlp's trainer.
  MB_OPAQUE(first);
  clear_bytes(first, sizeof room);
  first->error = options->error;
#if MB_FINGERPRINT
  first->accepts_any_checkpoint = options->accept_any_checkpoint;
#endif
  if (!first->read_plan(plan, plan_size)) return fail(first, Failure::kPlan, plan::kVersion);
  uint32_t free = first->count[plan::kDefaults];
  const void* symbols = options->symbols;
  if (symbols == nullptr) {
    symbols = first->data[plan::kDefaults];
  } else if (options->symbol_count != free) {
    return fail(first, Failure::kSymbolCount, free);
  }
  copy_bytes(first->symbols, symbols, free * sizeof(int32_t));
  size_t fixed = first->place(0) + first->persistent_bytes;
#if MB_ROLLBACK
  fixed += first->rollback_bytes;
#endif
  fixed = align_region(align16(fixed));
#if MB_THREADS > 1
  const size_t stacks = fixed;
  fixed += kStacksBytes;
#endif
  first->values = static_cast<Size*>(__builtin_alloca(first->value_count() * sizeof(Size)));
  const Size temporaries = first->evaluate();
  const size_t need = fixed + static_cast<size_t>(temporaries);
  if (temporaries < 0 || (sizeof(size_t) == 4 && need < fixed)) return fail(first, Failure::kSizes);
  char* memory = static_cast<char*>(options->arena);
  size_t size = options->arena_size;
  options->arena_size = need;
  if (session == nullptr) return MB_OK;

  bool own = memory == nullptr;
  if (own) memory = static_cast<char*>(map_memory(size = need));
  // The arena is at memory + fixed. Kernels load whole vectors from it and round scratch down to 16.
  if (memory == nullptr || size < need || ((reinterpret_cast<uintptr_t>(memory) | fixed) & (kAlignment - 1)) != 0)
    return fail(first, Failure::kRoom, static_cast<intptr_t>(need), static_cast<intptr_t>(size));
#if MB_THREADS > 1
  if (!own) clear_bytes(memory, stacks);
#else
  if (!own) clear_bytes(memory, fixed);  // fresh pages are zero, and take no room before they are touched
#endif
  Session* s = reinterpret_cast<Session*>(memory);
  copy_bytes(s, first, sizeof room);
#if MB_THREADS > 1
  s->team.set_up(options, memory + stacks);
#endif
  char* persistent = reinterpret_cast<char*>(s->place(reinterpret_cast<uintptr_t>(memory)));
  Span* regions = s->regions;
  regions[kArena] = {memory + fixed, size - fixed};
  regions[kTrained] = {persistent, s->trainable_bytes};
  regions[kPersistent] = {persistent, s->persistent_bytes};
  const char* constants = s->data[plan::kConstants];
  regions[kConstants] = {const_cast<char*>(constants), s->count[plan::kConstants] * size_t{8}};
  s->replaces_gradients = true;
  s->progress->learning_rate = 0.001f;
  if (own) s->mapped[0] = {memory, size};
  mb_status status = s->lay_out();
  for (uint32_t i = s->count[plan::kKernels]; i-- > 0;) {  // the first that lacks is the last to be told
    const plan::Kernel& kernel = s->kernel(i);
    if (find_kernel(kernel.key).key == 0) status = fail(s, Failure::kKernel, word_of(s->name_of(kernel, i)));
  }
  if (status == MB_OK) status = read_checkpoint(s, checkpoint, checkpoint_size);
  if (status == MB_OK) {
    s->error = s->error_room;
    *session = s;
  } else {
    mb_destroy(s);
  }
  return status;
}
#endif

void mb_destroy(mb_session* session) {
  if (session == nullptr) return;
  // The session lies in the first, which therefore goes last.
  unmap_memory(static_cast<Session*>(session)->mapped, 3);
}

#if MB_THREADS > 1
static mb_status run_graph(mb_session* session, int which, const mb_tensor* inputs, size_t count) {
#else
MB_ONE_EXIT mb_status mb_run(mb_session* session, int which, const mb_tensor* inputs, size_t count) {
#endif
  Session* s = static_cast<Session*>(session);
  s->damaged = false;
#if MB_FUSED_UPDATES
  // The training graph updates parameters, and can be run for both only.
  const bool updates = which == MB_TRAIN_AND_UPDATE;
  which = updates ? MB_TRAIN : which == MB_TRAIN ? MB_OPTIMIZER : which;
#endif
  const plan::Graph& graph = s->graph(static_cast<uint32_t>(which));
  if (s->damaged || graph.step_count + graph.output_count == 0) return fail(s, Failure::kGraph);
#if MB_BUFFERS
  if (s->nominal) return fail(s, Failure::kNominal);
#endif
#if MB_FUSED_UPDATES
  if (s->broken) return fail(s, Failure::kBroken);
#endif
  if (count != graph.input_count) return fail(s, Failure::kInputCount, graph.input_count);
#if MB_FINITE
  mb_status spoilt =
      (MB_FUSED_UPDATES ? which == MB_TRAIN : which == MB_OPTIMIZER) ? check_finite(s) : mb_status{MB_OK};
  if (spoilt != MB_OK) return spoilt;
#endif
#if MB_ROLLBACK
  char* const copy = s->regions[kPersistent].data + s->persistent_bytes;
  copy_bytes(copy, copy - s->rollback_bytes, s->rollback_bytes);
#endif
  // ORT counts the step before it updates: the first update sees 1.
#if !MB_FUSED_UPDATES
  const bool updates = which == MB_OPTIMIZER;
#endif
  s->progress->step += updates;
#if MB_SYMBOLS
  int32_t before[sizeof s->symbols / sizeof(int32_t)];
  copy_bytes(before, s->symbols, sizeof before);
#endif
  mb_status status = bind(s, graph, inputs);
#if MB_SYMBOLS
  if (status != MB_OK) {
    copy_bytes(s->symbols, before, sizeof before);
    s->lay_out();
  }
#endif
  if (status == MB_OK) {
    [[maybe_unused]] FlushDenormals flush;
    status = run_steps(s, graph);
  }
#if MB_LOSS_SCALING
  if (status == kSkipUpdateStatus) {  // what the kernel changed stays
    s->progress->step -= updates;
    status = MB_OK;
  }
#endif
  clear_bytes(s->regions + kBound, s->count[plan::kPorts] * sizeof(Span));
#if MB_ROLLBACK
  if (status != MB_OK) copy_bytes(copy - s->rollback_bytes, copy, s->rollback_bytes);
#else
  if (status != MB_OK) s->progress->step -= updates;
#endif
#if MB_FUSED_UPDATES
  if (s->broken) s->progress->step = 0;  // as in a new session
#else
  else if (which == MB_TRAIN) s->replaces_gradients = false;
#endif
  return status;
}

#if MB_THREADS > 1
mb_status mb_run(mb_session* session, int which, const mb_tensor* inputs, size_t count) {
  const mb_status status = run_graph(session, which, inputs, count);
  static_cast<Session*>(session)->team.end();
  return status;
}
#endif

mb_status mb_get(const mb_session* session, int list, size_t index, mb_parameter* found) {
  const Session* s = static_cast<const Session*>(session);
  plan::VectorIndex vector = plan::kParameters;
  uint32_t first = 0, count = s->count[vector];
  if (list != MB_PARAMETERS) {
    const plan::Graph& graph = s->graph(static_cast<uint32_t>(list) >> 1);
    vector = plan::kPorts;
    first = graph.ports, count = graph.input_count;
    if (list & MB_OUTPUTS) first += count, count = graph.output_count;
  }
  if (static_cast<uint32_t>(list) > MB_PARAMETERS || index >= count) return MB_INVALID_ARGUMENT;
  const plan::Port& port = s->entry(first + static_cast<uint32_t>(index), vector);
  found->name = s->name(port.name);
  // Both kinds of tensors have their data, rank and dimensions in the same places.
  const plan::Tensor& t = s->resolve(port.tensor, reinterpret_cast<Tensor*>(&found->value));
  found->value.type = t.type;
#if MB_SYMBOLS
  const auto* shape = s->shape(t);
  for (int i = 0; (list & ~2) == MB_INPUTS && i < found->value.rank; ++i)
    if (s->expr(*++shape).op != plan::kExprConstant) found->value.dims[i] = -1;
#endif
  found->kind = t.region < kNothing ? t.region : int32_t{MB_FROZEN};
  found->gradient = nullptr;
  if (!MB_FUSED_UPDATES && t.region == kTrained && found->value.data != nullptr)
    found->gradient = static_cast<char*>(found->value.data) + s->trainable_bytes;
  return MB_OK;
}

mb_status mb_load_checkpoint(mb_session* session, const void* bytes, size_t size) {
  // None is for new sessions. Where an empty file was read, bindings give null: that is a checkpoint of no bytes.
  if (bytes == nullptr) bytes = session, size = 0;
#if MB_FUSED_UPDATES
  const mb_status status = read_checkpoint(static_cast<Session*>(session), bytes, size);
  if (status == MB_OK) static_cast<Session*>(session)->broken = false;
  return status;
#else
  return read_checkpoint(static_cast<Session*>(session), bytes, size);
#endif
}

}  // extern "C"
