// The check of learning rate and gradients before an optimizer step; session.cc alone includes it.
#ifndef MINBUILD_RUNTIME_CHECK_FINITE_H_
#define MINBUILD_RUNTIME_CHECK_FINITE_H_

#include "runtime/session.h"

namespace minbuild {
namespace {

#if MB_FINITE
#if MB_FUSED_UPDATES
// Refuses a learning rate that would spoil the parameters. Gradients are checked by steps of the graph.
mb_status check_finite(const Session* s) {
  uint32_t word;
  __builtin_memcpy(&word, &s->progress->learning_rate, sizeof word);
  return word << 1 >= 0xff000000 ? fail(s, Failure::kFinite, word_of("learning rate")) : mb_status{MB_OK};
}
#else
// True if the model scales its loss dynamically: its optimizer graph acts on gradients that are not finite.
#if MB_LOSS_SCALING && !MB_COMPILED
bool scales_loss(const Session* s) {
  constexpr uint32_t kKeys[] = {MB_LOSS_SCALING_KEYS};
  for (uint32_t i = 0; i < s->count[plan::kKernels]; ++i)
    for (uint32_t key : kKeys)
      if (s->kernel(i).key == key) return true;
  return false;
}
#else
MB_INLINE constexpr bool scales_loss(const Session*) { return MB_LOSS_SCALING; }
#endif

#if MB_THREADS > 1 && !MB_DOUBLES
// True if some of these numbers is NaN or infinite.
struct NotFiniteBody {
  template <class W>
  static MB_INLINE bool run(const char* at, size_t size) {
    using V = typename W::template of<int32_t>;
    const char* const end = at + size;
    V any(0), exponent(0x7f800000);
    for (const char* last = end - size % sizeof(V); at != last; at += sizeof(V)) {
      typename V::Raw some;  // of a damaged plan at any address
      __builtin_memcpy(&some, at, sizeof some);
      any = any | ((V(some) & exponent) == exponent);
    }
    int32_t lanes[V::size], rest = 0;
    any.store(lanes);
    for (int32_t lane : lanes) rest |= lane;
    for (int32_t word; end - at >= intptr_t(sizeof word); at += sizeof word) {
      __builtin_memcpy(&word, at, sizeof word);
      rest |= (word & 0x7f800000) == 0x7f800000;
    }
    return rest != 0;
  }
};

// True if some of these numbers is NaN or infinite: by wide vectors, and by the threads of a call. Each reads on in one
// place, as far ahead as wide vectors let it: several at once, or short ones, take 1.3 times as long.
MB_NOINLINE bool any_not_finite(Session* s, const char* data, size_t size) {
  uint32_t found = 0;
  for_ranges(&s->team, intptr_t(size), int64_t(size), 4096, [&](intptr_t first, intptr_t count) {
    if (dispatch<NotFiniteBody>(data + first, size_t(count))) __atomic_store_n(&found, 1u, __ATOMIC_RELAXED);
  });
  return found != 0;
}
#endif

// Refuses an optimizer step that would spoil the parameters, before it changes anything. All bits of the exponent are set
// in a number that is NaN or infinite. First the learning rate, then all gradients, which lie one after the other.
MB_NOINLINE mb_status check_finite(Session* s) {
  uint32_t word;
  __builtin_memcpy(&word, &s->progress->learning_rate, sizeof word);
  const char* end = s->regions[kTrained].data + 2 * size_t{s->trainable_bytes};
  const char* at = end - s->trainable_bytes - 4;
  // Then all that is left is the learning rate.
#if MB_THREADS > 1 && !MB_DOUBLES
  if (scales_loss(s) || !any_not_finite(s, at + 4, s->trainable_bytes)) end = at;
#else
  if (scales_loss(s)) end = at;
#if defined(__x86_64__) && !MB_DOUBLES
  // The loop below takes up to a third of a step of a small perceptron. By vectors first: the sign of a number that
  // is not finite changes when the exponent grows by one. Only where one did are words looked at, all of them.
  using Words = uint32_t __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(16)));
  Words changed = {};
  const char* next = at + 4;
  for (; end - next >= 16; next += 16) {
    Words some;  // at any address, as above
    __builtin_memcpy(&some, next, sizeof some);
    changed |= some ^ (some + 0x00800000);
  }
  if (word << 1 < 0xff000000 && __builtin_ia32_movmskps(reinterpret_cast<Floats>(changed)) == 0) at = next - 4;
#endif
#endif
  for (;;) {
    if (word << 1 >= (MB_DOUBLES ? 0xffe00000 : 0xff000000)) {
      const char* what = "learning rate";
      mb_parameter found, last = {};
      for (uint32_t i = 0; mb_get(s, MB_PARAMETERS, i, &found) == MB_OK; ++i)
        if (found.gradient != nullptr && found.gradient <= at) what = found.name, last = found;
      // The lower half of a double may be anything, and a float has a shorter exponent.
      const bool whole =
          !MB_DOUBLES ||
          (last.value.type == MB_DOUBLE ? (at - static_cast<char*>(last.gradient)) % 8 != 0 : word << 1 >= 0xff000000);
      if (whole) return fail(s, Failure::kFinite, word_of(what));
    }
    at += sizeof word;
    if (at >= end) return MB_OK;  // a damaged plan may have bytes that are no multiple of 4
    __builtin_memcpy(&word, at, sizeof word);
  }
}
#endif
#endif

}  // namespace
}  // namespace minbuild

#endif
