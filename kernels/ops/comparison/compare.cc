// Comparisons and logic: results are bool, one byte each.
#include "lib/loops/broadcast.h"

namespace minbuild {

template <class T, class F>
MB_INLINE Status truth(const Call& call) {
  return broadcast_two<bool, T, MB_COMPARE_BROADCAST>(call, single_loop<bool, T, F>);
}

struct Less {
  template <class T>
  MB_INLINE bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessOrEqual {
  template <class T>
  MB_INLINE bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Equal {
  template <class T>
  MB_INLINE bool operator()(T a, T b) const {
    return a == b;
  }
};
// Whatever byte a caller hands over as bool, the result is 0 or 1.
struct And {
  MB_INLINE bool operator()(uint8_t a, uint8_t b) const { return a != 0 && b != 0; }
};
struct Or {
  MB_INLINE bool operator()(uint8_t a, uint8_t b) const { return (a | b) != 0; }
};
struct Xor {
  MB_INLINE bool operator()(uint8_t a, uint8_t b) const { return (a != 0) != (b != 0); }
};

// y = a < b, and `greater` with the operands exchanged
template <class T>
Status less(const Call& call) {
  return truth<T, Less>(call);
}

// y = a <= b
template <class T>
Status less_or_equal(const Call& call) {
  return truth<T, LessOrEqual>(call);
}

// y = a == b
template <class T>
Status equal(const Call& call) {
  return truth<T, Equal>(call);
}

template <class>
Status logical_and(const Call& call) {
  return truth<uint8_t, And>(call);
}

template <class>
Status logical_or(const Call& call) {
  return truth<uint8_t, Or>(call);
}

template <class>
Status logical_xor(const Call& call) {
  return truth<uint8_t, Xor>(call);
}

template <class>
Status logical_not(const Call& call) {
  if (call[0].count != call[1].count) return Status::kBadPlan;
  for (int i = 0; i < call[0].count; ++i) call[0].as<bool>()[i] = call[1].as<uint8_t>()[i] == 0;
  return Status::kOk;
}

MB_INSTANTIATE_COMPARE

}  // namespace minbuild
