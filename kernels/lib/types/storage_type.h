// Bool tensors come from callers and files, where a byte may hold anything.
#ifndef MINBUILD_LIB_TYPES_STORAGE_TYPE_H_
#define MINBUILD_LIB_TYPES_STORAGE_TYPE_H_

#include <stdint.h>

namespace minbuild {

// The type that an element is read as: a byte for bool, because reading a C++ bool other than 0 or 1 is undefined.
template <class T>
struct Stored {
  using type = T;
  static constexpr bool is_bool = false, is_real = T(0.5) != T(0);
};
template <>
struct Stored<bool> {
  using type = uint8_t;
  static constexpr bool is_bool = true, is_real = false;
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_TYPES_STORAGE_TYPE_H_
