// Cast between element types, over any shape.
#include "minbuild/kernel.h"
#include "shared/stored.h"

namespace minbuild {

template <class To, class From>
MB_INLINE To cast_element(From x) {
  // C++ leaves open what becomes of a real number that no integer of the type holds; hostile data must not matter.
  if constexpr (Stored<From>::is_real && !Stored<To>::is_real) {
    constexpr From limit = From(int64_t(1) << (sizeof(To) * 8 - 2)) * From(2);
    return x >= -limit && x < limit ? To(x) : To(uint64_t(1) << (sizeof(To) * 8 - 1));
  } else {
    return static_cast<To>(x);
  }
}

// y = x as another type: real numbers towards zero to integers, anything but zero to true
template <class To, class From>
Status cast(const Call& call) {
  if (call[0].count != call[1].count) return Status::kBadPlan;
  auto from = call[1].as<typename Stored<From>::type>();
  for (int i = 0; i < call[0].count; ++i) {
    if constexpr (Stored<To>::is_bool) {
      call[0].as<To>()[i] = from[i] != 0;
    } else if constexpr (Stored<From>::is_bool) {
      call[0].as<To>()[i] = To(from[i] != 0);
    } else {
      call[0].as<To>()[i] = cast_element<To, From>(from[i]);
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_CAST

}  // namespace minbuild
