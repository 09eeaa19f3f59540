// PRelu and its slope, over any shapes that broadcast.
#include "lib/loops/broadcast.h"

namespace minbuild {

struct PReluOf {
  template <class V>
  MB_INLINE V operator()(V x, V slope) const {
    return select(x < V(0), slope * x, x);
  }
};

// y = x where x >= 0, else slope * x
template <class T>
Status prelu(const Call& call) {
  return binary<T, PReluOf, MB_PRELU_BROADCAST, MB_PRELU_SCALAR>(call);
}

struct PReluSlopeOf {
  template <class V>
  MB_INLINE V operator()(V x, V slope) const {
    return select(x < V(0), slope, V(1));
  }
};

// y = 1 where x >= 0, else slope
template <class T>
Status prelu_slope(const Call& call) {
  return binary<T, PReluSlopeOf, MB_PRELU_BROADCAST, MB_PRELU_SCALAR>(call);
}

MB_INSTANTIATE_PRELU

}  // namespace minbuild
