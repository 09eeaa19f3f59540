// Cast between element types, over any shape. Integers that become integers or are made of real numbers are distinguished by
// size alone: the bits are the same whether they have a sign or not.
#include "minbuild/kernel.h"
#include "lib/types/half.h"
#include "lib/types/storage_type.h"

namespace minbuild {

// y[i] = F(x[i])
template <class To, class From, class F>
MB_INLINE Status convert_each(const Call& call, F f) {
  if (call[0].count != call[1].count) return Status::kBadPlan;
  To* to = call[0].as<To>();
  const From* from = call[1].as<From>();
  for (int i = 0; i < call[0].count; ++i) to[i] = f(from[i]);
  return Status::kOk;
}

// Towards zero. C++ leaves open what becomes of a real number that no integer of this size holds, with or without sign:
// here the smallest integer, so that hostile data does not matter.
template <class Unsigned, class Signed, class From>
MB_INLINE Unsigned whole(From x) {
  constexpr From limit = From(Unsigned(1) << (sizeof(Unsigned) * 8 - 2)) * From(2);
  constexpr Unsigned top = Unsigned(1) << (sizeof(Unsigned) * 8 - 1);
  if (x >= -limit && x < limit) return static_cast<Unsigned>(static_cast<Signed>(x));
  if (x >= limit && x < limit * From(2)) return static_cast<Unsigned>(static_cast<Signed>(x - limit)) + top;
  return top;
}

// Real numbers to integers of the size of To.
template <class To, class From>
Status cast_to_whole(const Call& call) {
  return convert_each<To, From>(call, [](From x) MB_LAMBDA {
    if constexpr (sizeof(To) == 8) return static_cast<To>(whole<uint64_t, int64_t>(x));
    if constexpr (sizeof(To) < 8) return static_cast<To>(whole<uint32_t, int32_t>(x));
  });
}

// Integers to real numbers, or to integers of the size of To.
template <class To, class From>
Status cast_whole(const Call& call) {
  return convert_each<To, From>(call, [](From x) MB_LAMBDA { return static_cast<To>(x); });
}

// Real numbers to those of another precision, rounded once.
template <class To, class From>
Status cast_real(const Call& call) {
  return convert_each<To, From>(call, [](From x) MB_LAMBDA {
    if constexpr (sizeof(To) == 2 && sizeof(From) == 8) {
      return To(rounded_to_odd(x));
    } else {
      return static_cast<To>(x);
    }
  });
}

// 1 for true, 0 for false, whatever byte a caller hands over as bool. The parameters are the bits of 1, whatever the
// type; masks, because jumps that depend on data are slow.
template <class To>
Status cast_bool(const Call& call) {
  To one;
  __builtin_memcpy(&one, call.params, sizeof one);
  return convert_each<To, uint8_t>(call, [one](uint8_t x) MB_LAMBDA { return To(one & (To(0) - To(x != 0))); });
}

// Anything but zero is true, NaN too.
template <class From>
Status cast_to_bool(const Call& call) {
  return convert_each<bool, From>(call, [](From x) MB_LAMBDA { return x != From(0); });
}

MB_INSTANTIATE_CAST

}  // namespace minbuild
