// Sums and means over axes.
#include "lib/loops/blas1.h"

namespace minbuild {

// Long sums are made of blocks, each summed by itself: what a sum loses grows with its length.
constexpr int kSumBlock = 1024;
enum ReduceFlags { kDivides = 1, kInBlocks = 2 };

#if MB_THREADS > 1 || MB_REDUCE_LONG
// sums[i] += the i-th element of every row, in their order; or their sum if that is `apart`
template <class T, class V, int kCount>
MB_INLINE void add_columns_to(T* sums, const T* x, int rows, intptr_t step, bool apart) {
  V all[kCount];
  unroll<kCount>([&](auto i) MB_LAMBDA { all[i] = apart ? V(T(0)) : V::load(sums + i * V::size); });
  for (; rows > 0; --rows, x += step)
    unroll<kCount>([&](auto i) MB_LAMBDA { all[i] = all[i] + V::load(x + i * V::size); });
  unroll<kCount>([&](auto i) MB_LAMBDA {
    if (apart) all[i] = all[i] + V::load(sums + i * V::size);
    all[i].store(sums + i * V::size);
  });
}
template <class T>
MB_NOINLINE void add_rows_to(T* sums, const T* x, int rows, intptr_t step, int columns, bool is_long) {
  using V = Width<kNarrowBytes>::of<T>;
  constexpr int kCount = 4;
  const bool apart = MB_REDUCE_LONG && is_long;
  for (int some = rows; rows > 0; rows -= some, x += some * step) {
    if (apart) some = rows < kSumBlock ? rows : kSumBlock;
    int i = 0;
    for (; i <= columns - kCount * V::size; i += kCount * V::size)
      add_columns_to<T, V, kCount>(sums + i, x + i, some, step, apart);
    for (; i < columns; ++i) add_columns_to<T, Vec<T, 1>, 1>(sums + i, x + i, some, step, apart);
  }
}
#endif

template <class T>
MB_INLINE T sum_of_row(const T* x, int count, bool is_long) {
  T sum = 0;
  for (; MB_REDUCE_LONG && is_long && count > kSumBlock; count -= kSumBlock, x += kSumBlock)
    sum += sum_range<T>(x, kSumBlock);
  const T last = sum_range<T>(x, count);
  return MB_REDUCE_LONG && is_long ? sum + last : last;
}

// x: [A,K,R,I,Q], summed over A, R and Q  y: [K,I]  The groups are x's axes folded together.
template <class T>
Status reduce(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 5 || groups.count != x.count) return Status::kBadPlan;
  const int32_t* size = groups.dims;
  int kept = size[1], reduced = size[2], inner = size[3], last = size[4];
  if (y.count != int64_t(kept) * inner) return Status::kBadPlan;
  // The mean divides sums, so what is in y already has to be multiplied first.
  const int flags = call.params[0];
  const bool mean = MB_REDUCE_MEAN && (flags & kDivides) != 0;
  const bool is_long = MB_REDUCE_LONG && (flags & kInBlocks) != 0;
  T divisor = mean ? static_cast<T>(size[0] * reduced * last) : T(1);
  T* to = y.as<T>();
  if (!call.adds(0)) clear_bytes(to, y.count * sizeof(T));
  for (int i = 0; mean && i < y.count; ++i) to[i] *= divisor;
#if MB_THREADS > 1
  // Every sum is one thread's: those that stand side by side are cut, or groups of them.
  constexpr int kWhole = 64 / sizeof(T);
  const bool beside = inner > 1;
  for_ranges(call.team, beside ? inner : kept, x.count * int64_t(sizeof(T)), beside ? kWhole : 1,
             [&](intptr_t first, intptr_t count) {
               const intptr_t row = intptr_t(inner) * last, group = row * reduced, i = beside ? first : 0;
               const int columns = beside ? int(count) : inner;
               const T* from = x.as<T>() + (beside ? first * last : first * group);
               for (int a = x.count > 0 ? size[0] : 0; a > 0; --a, from += kept * group) {
                 const T* group_from = from;
                 for (intptr_t k = beside ? 0 : first; k < (beside ? kept : first + count); ++k, group_from += group) {
                   T* sums = to + k * inner + i;
                   if (MB_REDUCE_COLUMNS && last == 1) {
                     add_rows_to<T>(sums, group_from, reduced, row, columns, is_long);
                   } else if (MB_REDUCE_ROWS) {
                     for (int r = 0; r < reduced; ++r)
                       for (int j = 0; j < columns; ++j)
                         sums[j] += sum_of_row<T>(group_from + r * row + intptr_t(j) * last, last, is_long);
                   }
                 }
               }
             });
#else
  const T* from = x.as<T>();
  for (int a = x.count > 0 ? size[0] : 0; a > 0; --a) {
    T* sums = to;
    for (int k = 0; k < kept; ++k, sums += inner) {
#if MB_REDUCE_COLUMNS && MB_REDUCE_LONG
      if (last == 1 && is_long) {
        add_rows_to<T>(sums, from, reduced, inner, inner, true);
        from += intptr_t(reduced) * inner;
        continue;
      }
#endif
      for (int r = 0; r < reduced; ++r) {
        if (MB_REDUCE_COLUMNS && last == 1) {
          add_range(sums, from, inner);
          from += inner;
        } else if (MB_REDUCE_ROWS) {
          for (int i = 0; i < inner; ++i, from += last) sums[i] += sum_of_row<T>(from, last, is_long);
        }
      }
    }
  }
#endif
  for (int i = 0; mean && i < y.count; ++i) to[i] /= divisor;
  return Status::kOk;
}

MB_INSTANTIATE_REDUCE

}  // namespace minbuild
