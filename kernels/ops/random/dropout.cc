// Dropout and its gradient by a given mask, and masks of one bit per element.
#include "minbuild/kernel.h"

namespace minbuild {

// y = x / (1 - ratio) where the mask is set, else 0. `ratio` is a tensor of one element.
template <class T, class R>
Status masked_scale(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &mask = call[2], &ratio = call[3];
  if (x.count != y.count || mask.count != y.count || ratio.count != 1) return Status::kBadPlan;
  float dropped = static_cast<float>(*ratio.as<R>());
  if (!(dropped >= 0.f && dropped < 1.f)) return Status::kBadValue;
  T scale = T(1) / (T(1) - T(dropped));
  const T* from = x.as<T>();
  const uint8_t* kept = mask.as<uint8_t>();
  T* to = y.as<T>();
  using I = typename LaneBits<T>::type;
  for (int i = 0; i < y.count; ++i) {  // without a branch, which nothing could foresee
    Vec<T, 1> scaled = from[i] * scale;
    bits_as<T>(bits_as<I>(scaled) & Vec<I, 1>(-I{kept[i] != 0})).store(to + i);
  }
  return Status::kOk;
}

// y: [ceil(n / 32)] words, whose bits from the lowest on are the elements of mask: [n]
template <class>
Status pack_bits(const Call& call) {
  const Tensor &y = call[0], &mask = call[1];
  uint32_t* words = y.as<uint32_t>();
  if (y.count != (mask.count >> 5) + ((mask.count & 31) != 0)) return Status::kBadPlan;
  for (int i = 0; i < y.count; ++i) words[i] = 0;
  for (int i = 0; i < mask.count; ++i) words[i >> 5] |= uint32_t{mask.as<uint8_t>()[i] != 0} << (i & 31);
  return Status::kOk;
}

// The inverse.
template <class>
Status unpack_bits(const Call& call) {
  const Tensor &mask = call[0], &x = call[1];
  if (x.count != (mask.count >> 5) + ((mask.count & 31) != 0)) return Status::kBadPlan;
  for (int i = 0; i < mask.count; ++i) mask.as<uint8_t>()[i] = x.as<uint32_t>()[i >> 5] >> (i & 31) & 1;
  return Status::kOk;
}

MB_INSTANTIATE_DROPOUT

}  // namespace minbuild
