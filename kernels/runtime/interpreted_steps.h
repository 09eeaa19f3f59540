// The inputs and the steps of a graph of a plan that is read. Part of session.cc, where the compiler sees what it inlines;
// in a library with a compiled plan, compiled.cc has the same functions.
#ifndef MINBUILD_RUNTIME_INTERPRETED_STEPS_H_
#define MINBUILD_RUNTIME_INTERPRETED_STEPS_H_

#include "runtime/loop_rounds.h"

namespace minbuild {
namespace {

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
#if MB_DENSE
      if (index >= s->count[plan::kPorts]) s->damaged = true;  // which other plans find in port()
#endif
      const auto& port = s->port(index);
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

// The steps of a graph in order: their places in the table of steps, and their tensors.
#if MB_DENSE
// Each is read as it comes. A loop goes back by so many bytes, and tensors that no step had before.
struct LoopStart {
  uint32_t bytes, tensors;
};
struct ParameterRoom {
  int32_t words[MB_MAX_PARAMS + 1];
};
struct StepReader {
  uint32_t newest;  // the tensor that comes next

  static MB_INLINE StepReader of(Session* s, const plan::Graph& graph) {
    s->next = graph.steps;
    return {graph.newest};
  }
  MB_INLINE uint32_t step(Session* s, const plan::Graph&, uint32_t) const { return s->read(); }
  // How far below the first tensor that no step had yet; 0 is that one.
  MB_INLINE uint32_t tensor(Session* s, const plan::Step&, uint32_t) {
    const uint32_t below = s->read(), index = newest - below;
    newest += below == 0;
    return index;
  }
  MB_INLINE const int32_t* params_end(Session* s, const plan::Step& step, uint32_t count, ParameterRoom* room) const {
    const uint32_t next = s->next;
    s->next = step.params;
    int32_t* word = room->words;
    for (; count != 0; --count) {
      const uint32_t zigzag = s->read();
      *word++ = static_cast<int32_t>(zigzag >> 1 ^ (0 - (zigzag & 1)));
    }
    s->next = next;
    return word;
  }
  MB_INLINE LoopStart loop(Session* s) const {
    const uint32_t bytes = s->read(), tensors = s->read();
    return {bytes, tensors};
  }
  MB_INLINE void back(Session* s, const LoopStart& start) { s->next -= start.bytes, newest -= start.tensors; }
};
#else
struct LoopStart {};
struct ParameterRoom {};
struct StepReader {
  static MB_INLINE StepReader of(Session*, const plan::Graph&) { return {}; }
  MB_INLINE uint32_t step(Session*, const plan::Graph& graph, uint32_t i) const { return graph.steps + i; }
  MB_INLINE uint32_t tensor(Session* s, const plan::Step& step, uint32_t k) const {
    return *static_cast<const Index*>(s->at(step.args + k, plan::kArgs));
  }
  MB_INLINE const int32_t* params_end(Session* s, const plan::Step& step, uint32_t count, ParameterRoom*) const {
    // One word stands behind the last step's parameters: where it is, all before it are.
    return static_cast<const int32_t*>(s->at(step.params + count, plan::kParams));
  }
  MB_INLINE LoopStart loop(Session*) const { return {}; }
  MB_INLINE void back(Session*, const LoopStart&) const {}
};
#endif

mb_status run_steps(Session* s, const plan::Graph& graph) {
  [[maybe_unused]] uint32_t last = 0;  // step of a loop
  begin_rounds(s, graph);
  StepReader reader = StepReader::of(s, graph);
  for (uint32_t i = 0; i < graph.step_count; ++i) {
    const plan::Step& step = *static_cast<const plan::Step*>(s->at(reader.step(s, graph, i), plan::kSteps));
    const plan::Kernel& kernel = s->kernel(step.kernel);
    const KernelRow& row = find_kernel(kernel.key);
    Tensor tensors[MB_MAX_ARGS > Call::kMiddle ? MB_MAX_ARGS : Call::kMiddle];
    const uint8_t* slot = kKernelSlots + row.slots;
    MB_OPAQUE(slot);  // else every access adds the address of the table again: a few bytes, under 16 in mlp
    for (uint32_t k = 0; k < row.arg_count; ++k, ++slot) {
      const plan::Tensor& t = s->resolve(reader.tensor(s, step, k), &tensors[k]);
      // Of the kernel's type, or absent where that may be; writable where it is written.
      if ((t.type != (*slot & kSlotType) && (t.region != kNothing || (*slot & kSlotOptional) == 0)) ||
          ((*slot & kSlotWritten) != 0 && t.region > kNothing))
        s->damaged = true;
    }
    ParameterRoom room;
    const int32_t* end = reader.params_end(s, step, row.param_count, &room);
    bool replaces = s->replaces_gradients != 0;
    replaces &= in_first_round(s);
    Call call = {tensors + Call::kMiddle, end - row.param_count, replaces ? 0u : step.accumulate};
    mb_status status = MB_BAD_PLAN;
    if (!s->damaged && skips_step(s)) status = MB_OK;
    const bool runs = !s->damaged && !skips_step(s);
#if MB_THREADS > 1
    call.team = &s->team;
    if (runs) status = static_cast<mb_status>(run_divided(&s->team, call, static_cast<uint32_t>(&row - kKernelRows)));
#else
    if (runs) status = static_cast<mb_status>(run_kernel(call, static_cast<uint32_t>(&row - kKernelRows)));
#endif
    status = control_rounds(s, status, tensors[0]);
#if MB_LOSS_SCALING
    if (status == kSkipUpdateStatus) return status;
#endif
#if MB_FUSED_UPDATES
    if (status != MB_OK) return fail_step(s, status, tensors, i, s->name_of(kernel, step.kernel));
#endif
    if (status != MB_OK)
      return fail(s, status == MB_BAD_VALUE ? Failure::kStepValues : Failure::kStepShapes, i,
                  word_of(s->name_of(kernel, step.kernel)));
#if MB_LOOPS
    if (step.loop != 0) {
      if (i < last) s->damaged = true;  // loops within loops may never end
      last = i;
      const LoopStart start = reader.loop(s);
      if (goes_on(s, graph)) {
        reader.back(s, start);
#if MB_LOOPS > 3
        i -= step.loop == kFromStart ? i + 1 : step.loop;
#else
        i -= step.loop;
#endif
      }
    }
#endif
  }
  return MB_OK;
}

}  // namespace
}  // namespace minbuild

#endif  // MINBUILD_RUNTIME_INTERPRETED_STEPS_H_
