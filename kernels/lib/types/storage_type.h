// Bool tensors come from callers and files, where a byte may hold anything.
#ifndef MINBUILD_LIB_TYPES_STORAGE_TYPE_H_
#define MINBUILD_LIB_TYPES_STORAGE_TYPE_H_

#include <stdint.h>

namespace minbuild {

// The type to read an element as: a byte for bool, which must not be read as C++ bool unless it is 0 or 1.
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
