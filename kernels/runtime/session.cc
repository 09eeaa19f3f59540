// Creating a session inside one piece of memory, and running its graphs.
#include "runtime/session.h"

#include "runtime/check_finite.h"
#include "runtime/flush_denormals.h"
#include "runtime/memory.h"

namespace minbuild {

#if !MB_COMPILED
uintptr_t Session::place(uintptr_t memory) {
  region_count = bound(count[plan::kParameters]);
  const Layout layout = layout_of(sizeof(Session), sizeof(Span), region_count, value_count(), sizeof(Size));
  regions = reinterpret_cast<Span*>(memory + layout.regions);
  values = reinterpret_cast<Size*>(memory + layout.values);
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
              s->count[plan::kMoments] * size_t{s->trainable_bytes});
  if (status != kNotFiniteStatus) return fail(s, Failure::kStepShapes, step, word_of(kernel));
  mb_parameter found;
  for (uint32_t i = 0; mb_get(s, MB_PARAMETERS, i, &found) == MB_OK; ++i)
    if (found.value.data == parameter->data) break;
  return fail(s, Failure::kFinite, word_of(found.name));
}
#endif

namespace {

#if !MB_COMPILED
MB_NOINLINE const KernelRow& find_kernel(uint32_t key) {
  const KernelRow* row = kKernelRows;
  while (row->key != key && row->key != 0) ++row;
  return *row;
}

// Makes what the caller hands over the regions of a graph's inputs, if it is what the plan expects there. The first walk
// takes the sizes of the free dimensions from it, the second compares. What a damaged plan does to this, its first step
// will find.
mb_status bind(Session* s, const plan::Graph& graph, const mb_tensor* inputs) {
  for (int walk = MB_SYMBOLS ? 0 : 1; walk < 2; ++walk) {
    const mb_tensor* next = inputs;
    for (uint32_t i = 0; i < graph.input_count; ++i) {
      const uint32_t index = graph.ports + i;
      const plan::Port& port = s->port(index);
      const mb_tensor& input = *next++;
      Span* region = &s->regions[kBound + index];
      if (!s->damaged) *region = {static_cast<char*>(input.data), kAnySize};
      Tensor expected;
      const plan::Tensor& t = s->resolve(port.tensor, &expected);
      if (!s->damaged) region->size = bytes_of(expected, t.type);
      // From here on as callers see it: a type, a rank, dimensions.
      expected.count = t.type;
      const int32_t *required = &expected.count, *given = &input.type;
#if MB_SYMBOLS
      const auto* shape = s->shape(t);
#endif
      for (int k = 0; k < 2 + expected.rank; ++k) {
#if MB_SYMBOLS
        if (walk == 0) {
          if (k < 2) continue;
          const plan::Expr& e = s->expr(*++shape);
          if (e.op == plan::kExprSymbol) s->symbols[e.a & (kMostSymbols - 1)] = given[k];
          continue;
        }
#endif
        if (input.data == nullptr || given[k] != required[k])
          return fail(s, Failure::kInput, word_of(s->name(port.name)), required[k], k + 1);
      }
    }
#if MB_SYMBOLS
    mb_status status = walk == 0 ? s->lay_out() : mb_status{MB_OK};
    if (status != MB_OK) return status;
#endif
  }
  return MB_OK;
}
#endif

#if !MB_COMPILED
mb_status run_steps(Session* s, const plan::Graph& graph) {
#if MB_LOOPS
  uint32_t last = 0;  // step of a loop
  s->sample = 0;
#if MB_LOOPS > 1
  s->last_sample = s->samples(graph) - 1;
#endif
#if MB_LOOPS > 2
  s->loop = {s->samples(graph), false};
#endif
#endif
#if MB_DENSE
  s->next = graph.steps;
  uint32_t newest = graph.newest;
#endif
  for (uint32_t i = 0; i < graph.step_count; ++i) {
#if MB_DENSE
    const uint32_t place = s->read();
#else
    const uint32_t place = graph.steps + i;
#endif
    const plan::Step& step = *static_cast<const plan::Step*>(s->at(place, plan::kSteps));
    const plan::Kernel& kernel = s->kernel(step.kernel);
    const KernelRow& row = find_kernel(kernel.key);
    Tensor tensors[MB_MAX_ARGS > Call::kMiddle ? MB_MAX_ARGS : Call::kMiddle];
    const uint8_t* slot = kKernelSlots + row.slots;
    MB_OPAQUE(slot);  // else every access adds the address of the table again: a few bytes, under 16 in mlp
    for (uint32_t k = 0; k < row.arg_count; ++k, ++slot) {
#if MB_DENSE
      // How far below the first tensor that no step had yet; 0 is that one.
      const uint32_t below = s->read(), index = newest - below;
      newest += below == 0;
#else
      uint32_t index = *static_cast<const Index*>(s->at(step.args + k, plan::kArgs));
#endif
      const plan::Tensor& t = s->resolve(index, &tensors[k]);
      // Of the kernel's type, or absent where that may be; writable where it is written.
      if ((t.type != (*slot & kSlotType) && (t.region != kNothing || (*slot & kSlotOptional) == 0)) ||
          ((*slot & kSlotWritten) != 0 && t.region > kNothing))
        s->damaged = true;
    }
    // One word stands behind the last step's parameters: where it is, all before it are.
    const int32_t* end = static_cast<const int32_t*>(s->at(step.params + row.param_count, plan::kParams));
    bool replaces = s->replaces_gradients != 0;
#if MB_LOOPS
    replaces &= s->sample == 0;
#endif
    Call call = {tensors + Call::kMiddle, end - row.param_count, replaces ? 0u : step.accumulate};
    mb_status status = MB_BAD_PLAN;
#if MB_LOOPS > 2
    if (!s->damaged && s->loop.skips) status = MB_OK;
    const bool runs = !s->damaged && !s->loop.skips;
#else
    const bool runs = !s->damaged;
#endif
#if MB_THREADS > 1
    call.team = &s->team;
    if (runs) status = static_cast<mb_status>(run_divided(&s->team, call, static_cast<uint32_t>(&row - kKernelRows)));
#else
    if (runs) status = static_cast<mb_status>(run_kernel(call, static_cast<uint32_t>(&row - kKernelRows)));
#endif
#if MB_LOOPS > 2
    status = s->loop.act(status, tensors[0], &s->last_sample);
#endif
#if MB_FUSED_UPDATES
    if (status != MB_OK) return fail_step(s, status, tensors, i, s->name(kernel.name));
#endif
    if (status != MB_OK)
      return fail(s, status == MB_BAD_VALUE ? Failure::kStepValues : Failure::kStepShapes, i,
                  word_of(s->name(kernel.name)));
#if MB_LOOPS
    if (step.loop != 0) {
      if (i < last) s->damaged = true;  // loops within loops may never end
      last = i;
#if MB_DENSE
      const uint32_t bytes = s->read(), tensors_back = s->read();
#endif
#if MB_LOOPS > 2
      s->loop.skips = false;
      const bool again = ++s->sample < s->loop.rounds;
#else
      const bool again = ++s->sample < s->samples(graph);
#endif
      if (again) {
#if MB_LOOPS > 3
        i -= step.loop == kFromStart ? i + 1 : step.loop;
#else
        i -= step.loop;
#endif
#if MB_DENSE
        s->next -= bytes, newest -= tensors_back;
#endif
      } else {
        s->sample = 0;
      }
    }
#endif
  }
  return MB_OK;
}
#endif

}  // namespace
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
  fixed = align16(fixed);
#if MB_THREADS > 1
  const size_t stacks = fixed;
  fixed += kStacksBytes;
#endif
  first->values = static_cast<Size*>(__builtin_alloca(first->value_count() * sizeof(Size)));
  const Size temporaries = first->evaluate();
  if (temporaries < 0) return fail(first, Failure::kSizes);
  const size_t need = fixed + static_cast<size_t>(temporaries);
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
    if (find_kernel(kernel.key).key == 0) status = fail(s, Failure::kKernel, word_of(s->name(kernel.name)));
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
#if MB_COMPILED
  const plan::Port& port = s->entry(first + static_cast<uint32_t>(index), vector);
#else
  static_assert(sizeof(plan::Port) == sizeof(plan::Parameter), "both are a name and a tensor");
  const plan::Port& port = *static_cast<const plan::Port*>(s->at(first + static_cast<uint32_t>(index), vector));
#endif
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

mb_status mb_load_checkpoint(mb_session* session, const void* checkpoint, size_t size) {
#if MB_FUSED_UPDATES
  const mb_status status = read_checkpoint(static_cast<Session*>(session), checkpoint, size);
  if (status == MB_OK) static_cast<Session*>(session)->broken = false;
  return status;
#else
  return read_checkpoint(static_cast<Session*>(session), checkpoint, size);
#endif
}

}  // extern "C"
