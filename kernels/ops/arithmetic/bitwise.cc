// Bitwise and, or, xor, and shifts of integers, over any shapes that broadcast.
#include "lib/loops/broadcast.h"

namespace minbuild {

struct BitAndOf {
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitOrOf {
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitXorOf {
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    return a ^ b;
  }
};
// A negative amount counts as more than there are bits.
struct ShiftLeftOf {
  template <class T>
  MB_INLINE T operator()(T a, T amount) const {
    return amount < T(sizeof(T) * 8) ? static_cast<T>(uint64_t(a) << amount) : T(0);
  }
};
struct ShiftRightOf {
  template <class T>
  MB_INLINE T operator()(T a, T amount) const {
    constexpr int bits = sizeof(T) * 8;
    if (amount >= T(0) && amount < T(bits)) return static_cast<T>(a >> amount);
    return a < T(0) ? T(-1) : T(0);
  }
};

template <class T, class F>
MB_INLINE Status bitwise(const Call& call) {
  return broadcast_two<T, T, true>(call, single_loop<T, T, F>);
}

// y = a & b
template <class T>
Status bit_and(const Call& call) {
  return bitwise<T, BitAndOf>(call);
}

// y = a | b
template <class T>
Status bit_or(const Call& call) {
  return bitwise<T, BitOrOf>(call);
}

// y = a ^ b
template <class T>
Status bit_xor(const Call& call) {
  return bitwise<T, BitXorOf>(call);
}

// y = a * 2^b, what leaves the type lost
template <class T>
Status shift_left(const Call& call) {
  return bitwise<T, ShiftLeftOf>(call);
}

// y = floor(a / 2^b)
template <class T>
Status shift_right(const Call& call) {
  return bitwise<T, ShiftRightOf>(call);
}

MB_INSTANTIATE_BITWISE

}  // namespace minbuild
