// The rounds of a graph's loops. A library has as much as its plans need: MB_LOOPS is 0 without loops; 1: all loops of a
// graph have as many rounds; 2: some go backward; 3: they have lengths of their own, and rounds that are skipped; 4: a loop
// may have more steps than a step's number holds. The rest costs no byte.
#ifndef MINBUILD_RUNTIME_LOOP_ROUNDS_H_
#define MINBUILD_RUNTIME_LOOP_ROUNDS_H_

#include "runtime/session.h"

namespace minbuild {

#if MB_LOOPS
// Before the steps of `graph`.
MB_INLINE void begin_rounds(Session* s, [[maybe_unused]] const plan::Graph& graph) {
  s->sample = 0;
#if MB_LOOPS > 1
  s->last_sample = s->samples(graph) - 1;
#endif
#if MB_LOOPS > 2
  s->loop = {s->samples(graph), false};
#endif
}
// Later rounds add to gradients that the first one replaced.
MB_INLINE bool in_first_round(const Session* s) { return s->sample == 0; }
// After the last step of a loop: true if it begins again.
MB_INLINE bool goes_on(Session* s, [[maybe_unused]] const plan::Graph& graph) {
#if MB_LOOPS > 2
  s->loop.skips = false;
  const bool again = ++s->sample < s->loop.rounds;
#else
  const bool again = ++s->sample < s->samples(graph);
#endif
  if (!again) s->sample = 0;
  return again;
}
#else
MB_INLINE void begin_rounds(Session*, const plan::Graph&) {}
MB_INLINE constexpr bool in_first_round(const Session*) { return true; }
#endif

#if MB_LOOPS > 2
MB_INLINE bool skips_step(const Session* s) { return s->loop.skips; }
// Acts on the status of a step with this first argument; the status that is left.
MB_INLINE mb_status control_rounds(Session* s, mb_status status, const Tensor& first) {
  return s->loop.act(status, first, &s->last_sample);
}
#else
MB_INLINE constexpr bool skips_step(const Session*) { return false; }
MB_INLINE mb_status control_rounds(Session*, mb_status status, const Tensor&) { return status; }
#endif

}  // namespace minbuild

#endif  // MINBUILD_RUNTIME_LOOP_ROUNDS_H_
