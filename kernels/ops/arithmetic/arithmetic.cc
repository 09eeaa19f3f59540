// Add, Sub, Mul and Div, over any shapes that broadcast.
#include "lib/loops/broadcast.h"
#include "lib/loops/elementwise_functions.h"

namespace minbuild {

template <class T, class F>
MB_INLINE Status arithmetic(const Call& call) {
  return binary<T, F, MB_ARITHMETIC_BROADCAST, MB_ARITHMETIC_SCALAR>(call);
}

// y = a + b. Sums, differences and products of integers are the same bits whether they are signed or not.
template <class T>
Status add(const Call& call) {
  return arithmetic<T, AddOf>(call);
}

// y = a - b
template <class T>
Status sub(const Call& call) {
  return arithmetic<T, SubOf>(call);
}

// y = a * b
template <class T>
Status mul(const Call& call) {
  return arithmetic<T, MulOf>(call);
}

// y = a / b, integers towards zero
template <class T>
Status div(const Call& call) {
  return arithmetic<T, DivOf>(call);
}

MB_INSTANTIATE_ARITHMETIC

}  // namespace minbuild
