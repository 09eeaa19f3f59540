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

// Added to the bits of a number, it makes the exponent grow by one: the sign changes of NaN and infinity, and of no other.
constexpr uint32_t kExponentStep = 0x00800000;

#if MB_THREADS > 1 && !MB_DOUBLES
// True if some of these numbers is NaN or infinite.
struct NotFiniteBody {
  template <class W>
  static MB_INLINE bool run(const char* at, size_t size) {
    using V = typename W::template of<uint32_t>;
    const char* const end = at + size;
    V changed(0), step(kExponentStep);
    for (const char* last = end - size % sizeof(V); at != last; at += sizeof(V)) {
      typename V::Raw some;  // of a damaged plan at any address
      __builtin_memcpy(&some, at, sizeof some);
      changed = changed | (V(some) ^ (V(some) + step));
    }
    uint32_t lanes[V::size], rest = 0;
    changed.store(lanes);
    for (uint32_t lane : lanes) rest |= lane;
    for (uint32_t word; end - at >= intptr_t(sizeof word); at += sizeof word) {
      __builtin_memcpy(&word, at, sizeof word);
      rest |= word ^ (word + kExponentStep);
    }
    return rest >> 31 != 0;
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
  const char* at = s->regions[kTrained].data + s->trainable_bytes - sizeof word;
  MB_OPAQUE(at);  // else both ends are computed from the region
  const char* last = at + s->trainable_bytes;
  // Where gradients need no look, all that is left is the learning rate.
#if MB_THREADS > 1 && !MB_DOUBLES
  if (scales_loss(s) || !any_not_finite(s, at + sizeof word, s->trainable_bytes)) last = at;
#else
  if (scales_loss(s)) last = at;
#endif
  for (;;) {
    if (word << 1 >= 0xff000000) {
      const char* what = "learning rate";
      mb_parameter found, spoilt = {};
      for (uint32_t i = 0; mb_get(s, MB_PARAMETERS, i, &found) == MB_OK; ++i) {
        // Of parameters without a gradient, whose place is 0, this is the largest number.
        const uintptr_t before = reinterpret_cast<uintptr_t>(found.gradient) - 1;
        if (before < reinterpret_cast<uintptr_t>(at)) what = found.name, spoilt = found;
      }
      // The lower half of a double may be anything, and its exponent is longer.
      const bool whole = !MB_DOUBLES || spoilt.value.type != MB_DOUBLE ||
                         ((at - static_cast<char*>(spoilt.gradient)) % 8 != 0 && word << 1 >= 0xffe00000);
      if (whole) return fail(s, Failure::kFinite, word_of(what));
    }
#if MB_THREADS == 1 && defined(__x86_64__) && !MB_DOUBLES
    // Words alone take up to a third of a step of a small perceptron: as far as gradients are finite, go by vectors.
    using Words = uint32_t __attribute__((vector_size(16)));
    using Floats = float __attribute__((vector_size(16)));
    uint32_t number = kExponentStep;
    MB_OPAQUE(number);  // else the vector is a constant of 16 bytes, aligned
    const Words step = Words{} + number;
    for (; at <= last - sizeof step; at += sizeof step) {
      Words some;  // of a damaged plan at any address
      __builtin_memcpy(&some, at + sizeof word, sizeof some);
      if (__builtin_ia32_movmskps(reinterpret_cast<Floats>(some ^ (some + step))) != 0) break;
    }
#endif
    if (at >= last) return MB_OK;  // a damaged plan may have bytes that are no multiple of 4
    at += sizeof word;
    __builtin_memcpy(&word, at, sizeof word);
  }
}
#endif
#endif

}  // namespace
}  // namespace minbuild

#endif
