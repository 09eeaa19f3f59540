// Clip and its gradient, over any shape.
#include "lib/loops/elementwise.h"

namespace minbuild {

// The bounds are in the parameters, two words each, as elements of T.
template <class T>
struct Bounds {
  T low, high;

  MB_INLINE explicit Bounds(const Call& call) {
    __builtin_memcpy(&low, call.params, sizeof(T));
    __builtin_memcpy(&high, call.params + 2, sizeof(T));
  }
};

template <class T>
struct ClipOf {
  Bounds<T> bounds;

  template <class V>
  MB_INLINE V operator()(V x) const {
    return min(V(bounds.high), max(V(bounds.low), x));  // in this order NaN stays
  }
};

// y = min(high, max(low, x))
template <class T>
Status clip(const Call& call) {
  return map<kWidest, T>(call, ClipOf<T>{Bounds<T>(call)}, 1);
}

template <class T>
struct ClipGradOf {
  Bounds<T> bounds;

  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    return select((x >= V(bounds.low)) & (x <= V(bounds.high)), dy, V(0));
  }
};

// dx = dy where low <= x <= high, else 0
template <class T>
Status clip_grad(const Call& call) {
  return map<kBaseline, T>(call, ClipGradOf<T>{Bounds<T>(call)}, 1, 2);
}

MB_INSTANTIATE_CLIP

}  // namespace minbuild
