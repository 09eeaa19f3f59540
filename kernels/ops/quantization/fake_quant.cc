// FakeQuant: rounds to the numbers that a quantised type can hold, over any shape; its gradient; and its result from
// quantised numbers that were kept.
#include "minbuild/kernel.h"
#include "lib/simd/math.h"

namespace minbuild {

// As many elements as there are bits in a byte; where vectors are but scalars, single ones take the fewest bytes.
template <class T>
using Lanes8 = Vec<T, MB_ONE_VARIANT && !MB_SIMD ? 1 : 8>;

// The same number in all lanes, also where vectors are wider than those of the processor.
template <class T>
MB_INLINE Lanes8<T> lanes_of_one(T x) {
  if constexpr (Lanes8<T>::size == 1) {
    return x;
  } else {
    return typename Lanes8<T>::Raw{x, x, x, x, x, x, x, x};
  }
}

// The same numbers, or -1 and 0, under a smaller type; the first `left` of them, or all if more are left.
template <class To, class T, int N>
MB_INLINE void store_as(Vec<T, N> x, To* to, int left) {
  using Raw = typename RawVec<To, N>::type;
  const Raw all = __builtin_convertvector(x.v, Raw);
  if (__builtin_expect(left >= N, 1)) {
    __builtin_memcpy(to, &all, sizeof all);
  } else {
    for (int i = 0; i < left; ++i) to[i] = all[i];
  }
}
// The inverse. Lanes beyond `left` read as zero.
template <class T, int N, class From>
MB_INLINE Vec<T, N> load_as(const From* from, int left) {
  using Raw = typename RawVec<From, N>::type;
  Raw all = {};
  if (__builtin_expect(left >= N, 1)) {
    __builtin_memcpy(&all, from, sizeof all);
  } else {
    for (int i = 0; i < left; ++i) all[i] = from[i];
  }
  return __builtin_convertvector(all, typename Vec<T, N>::Raw);
}

// A mask of type M for `all` elements: of bool a byte for each, else a bit for each, where those of every row, which the
// first dimension counts, begin with a byte.
template <class M>
struct Mask {
  static constexpr bool kBits = !__is_same(M, bool);
  M* data;
  int rows = 1, count;

  MB_INLINE Mask(const Tensor& mask, int all) : data(mask.as<M>()), count(all) {
    if (!kBits || !data || mask.rank == 0 || mask.dims[0] == 0) return;
    rows = mask.dims[0];
    count = all / rows;
  }
  MB_INLINE int row_bytes() const { return kBits ? (count + 7) >> 3 : count; }
  MB_INLINE bool fits(const Tensor& mask, int all) const {
    return !data || (rows * count == all && mask.count == rows * row_bytes());
  }

  // Lanes of -1 or 0, from and to what `row` has for its element `at` and those behind it, of which `left` are there.
  template <class I, int N>
  MB_INLINE void put(Vec<I, N> set, M* row, int at, int left) const {
    if constexpr (!kBits) {
      store_as(set & Vec<I, N>(I(1)), reinterpret_cast<uint8_t*>(row + at), left);
    } else if constexpr (N == 8) {
      uint64_t bytes;
      store_as(set, reinterpret_cast<int8_t*>(&bytes), N);
      row[at >> 3] = M((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);  // the lowest bit of each byte
    } else {
      row[at >> 3] = M((at & 7 ? row[at >> 3] : 0) | (set.v[0] & 1) << (at & 7));
    }
  }
  template <class I, int N>
  MB_INLINE Vec<I, N> get(const M* row, int at, int left) const {
    if constexpr (!kBits) {
      return load_as<I, N>(reinterpret_cast<const uint8_t*>(row + at), left) != Vec<I, N>(I(0));
    } else if constexpr (N == 8) {
      const Vec<I, N> bits = typename Vec<I, N>::Raw{1, 2, 4, 8, 16, 32, 64, 128};
      return (lanes_of_one(I(row[at >> 3])) & bits) != Vec<I, N>(I(0));
    } else {
      return Vec<I, N>(-I(row[at >> 3] >> (at & 7) & 1));
    }
  }
};

// x, y: any shape  inside: the mask for the gradient  codes: quantised numbers less the smallest
// scale, zero_point: one element  Parameters: the smallest and largest quantised number.
template <class T, class M, class C>
Status fake_quant(const Call& call) {
  using V = Lanes8<T>;
  const Tensor &y = call[0], &codes = call[2], &x = call[3];
  const bool marks = MB_FAKE_QUANT_INSIDE && call[1], keeps = MB_FAKE_QUANT_CODES && codes;
  const Mask<M> mask(marks ? call[1] : Tensor{}, x.count);
  if ((y && y.count != x.count) || (keeps && codes.count != x.count)) return Status::kBadPlan;
  if (!mask.fits(call[1], x.count) || call[4].count != 1 || call[5].count != 1) return Status::kBadPlan;
  const V scale = lanes_of_one(*call[4].as<T>()), zero = lanes_of_one(*call[5].as<T>());
  const V low = lanes_of_one(T(call.real(0))), high = lanes_of_one(T(call.real(1)));
  const V limit = T(1 << 22), round = Format<T>::round;  // adding and taking `round` rounds what is within the limit
  const T* from = x.as<T>();
  T* to = y.as<T>();
  M* row = mask.data;
  C* code = codes.as<C>();
  for (int r = 0; r < mask.rows; ++r, row += marks ? mask.row_bytes() : 0) {
    for (int at = 0, left = mask.count; left > 0; at += V::size, left -= V::size) {
      const V steps = min(limit, max(-limit, V::load(from + at, left) / scale));  // in this order NaN stays
      const V whole = (steps + round) - round + zero, kept = min(high, max(low, whole));
      if (marks) mask.put((whole >= low) & (whole <= high), row, at, left);
      // In this order NaN does not stay.
      if (keeps) store_as(convert<int32_t>(max(kept - low, V(T(0)))), code + at, left);
      if (to) ((kept - zero) * scale).store(to + at, left);
    }
    from += mask.count;
    if (to) to += mask.count;
    if (keeps) code += mask.count;
  }
  return Status::kOk;
}

// dx = dy where the mask is set, else 0. dx, dy: any shape
template <class T, class M>
Status fake_quant_grad(const Call& call) {
  using V = Lanes8<T>;
  using I = typename LaneBits<T>::type;
  const Tensor &dx = call[0], &dy = call[1];
  const Mask<M> mask(call[2], dy.count);
  if (dx.count != dy.count || !mask.fits(call[2], dy.count)) return Status::kBadPlan;
  const T* from = dy.as<T>();
  T* to = dx.as<T>();
  const M* row = mask.data;
  for (int r = 0; r < mask.rows; ++r, row += mask.row_bytes(), from += mask.count, to += mask.count) {
    for (int at = 0, left = mask.count; left > 0; at += V::size, left -= V::size) {
      const auto set = mask.template get<I, V::size>(row, at, left);
      bits_as<T>(bits_as<I>(V::load(from + at, left)) & set).store(to + at, left);
    }
  }
  return Status::kOk;
}

// y: any shape, as fake_quant computes it  codes: as it keeps them  scale, zero_point: one element
// Parameter: the smallest quantised number.
template <class T, class C>
Status decode(const Call& call) {
  using V = Lanes8<T>;
  const Tensor &y = call[0], &codes = call[1];
  if (y.count != codes.count || call[2].count != 1 || call[3].count != 1) return Status::kBadPlan;
  const V scale = lanes_of_one(*call[2].as<T>());
  const V offset = lanes_of_one(T(call.real(0)) - *call[3].as<T>());  // of whole numbers
  for (int at = 0, left = y.count; left > 0; at += V::size, left -= V::size)
    ((load_as<T, V::size>(codes.as<C>() + at, left) + offset) * scale).store(y.as<T>() + at, left);
  return Status::kOk;
}

MB_INSTANTIATE_FAKE_QUANT

}  // namespace minbuild
