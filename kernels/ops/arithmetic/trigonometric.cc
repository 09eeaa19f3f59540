// Functions of angles and their inverses, over any shape.
#include "lib/simd/trigonometry.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

struct SinOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return wave(x, 0);
  }
};
struct CosOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return wave(x, 1);
  }
};
struct TanOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return tan(x);
  }
};
struct AtanOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return atan(x);
  }
};
// Beyond -1 and 1 the roots of negative numbers make these NaN.
struct AsinOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return atan(x / sqrt((V(1) - x) * (V(1) + x)));
  }
};
struct AcosOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return V(2) * atan(sqrt((V(1) - x) / (V(1) + x)));
  }
};

template <class T>
Status sin(const Call& call) {
  return map_padded<kBaseline, T>(call, SinOf{}, 1);
}
template <class T>
Status cos(const Call& call) {
  return map_padded<kBaseline, T>(call, CosOf{}, 1);
}
template <class T>
Status tan(const Call& call) {
  return map_padded<kBaseline, T>(call, TanOf{}, 1);
}
template <class T>
Status atan(const Call& call) {
  return map_padded<kBaseline, T>(call, AtanOf{}, 1);
}
template <class T>
Status asin(const Call& call) {
  return map_padded<kBaseline, T>(call, AsinOf{}, 1);
}
template <class T>
Status acos(const Call& call) {
  return map_padded<kBaseline, T>(call, AcosOf{}, 1);
}

MB_INSTANTIATE_TRIGONOMETRIC

}  // namespace minbuild
