// Sums and means over axes.
#include "lib/loops/blas1.h"

namespace minbuild {

// x: [A,K,R,I,Q], summed over A, R and Q  y: [K,I]  The groups are x's axes folded together.
template <class T>
Status reduce(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 5 || groups.count != x.count) return Status::kBadPlan;
  const int32_t* size = groups.dims;
  int kept = size[1], reduced = size[2], inner = size[3], last = size[4];
  if (y.count != int64_t(kept) * inner) return Status::kBadPlan;
  // The mean divides sums, so what is in y already has to be multiplied first.
  const bool mean = MB_REDUCE_MEAN && call.params[0] != 0;
  T divisor = mean ? static_cast<T>(size[0] * reduced * last) : T(1);
  T* to = y.as<T>();
  if (!call.adds(0)) clear_bytes(to, y.count * sizeof(T));
  for (int i = 0; mean && i < y.count; ++i) to[i] *= divisor;
#if MB_THREADS > 1
  // Every sum is one thread's: sums that stand side by side are cut.
  const int members = members_of(call.team), some = (inner + 2 * members - 1) / (2 * members);
  if (members > 1 && inner > 1 && int64_t(x.count) * int64_t(sizeof(T)) >= 2 * kLeastBytes) {
    for_parts(call.team, members, (inner + some - 1) / some, [&](int32_t part, int32_t) {
      const int first = part * some, end = inner - first < some ? inner : first + some;
      const T* row = x.as<T>() + intptr_t(first) * last;
      for (int a = 0; a < size[0]; ++a)
        for (int k = 0; k < kept; ++k)
          for (int r = 0; r < reduced; ++r, row += intptr_t(inner) * last) {
            T* sums = to + intptr_t(k) * inner;
            if (MB_REDUCE_COLUMNS && last == 1) add_range(sums + first, row, end - first);
            else if (MB_REDUCE_ROWS)
              for (int i = first; i < end; ++i) sums[i] += sum_range<T>(row + intptr_t(i - first) * last, last);
          }
    });
    for (int i = 0; mean && i < y.count; ++i) to[i] /= divisor;
    return Status::kOk;
  }
#endif
  const T* from = x.as<T>();
  for (int a = x.count > 0 ? size[0] : 0; a > 0; --a) {
    T* sums = to;
    for (int k = 0; k < kept; ++k, sums += inner) {
      for (int r = 0; r < reduced; ++r) {
        if (MB_REDUCE_COLUMNS && last == 1) {
          add_range(sums, from, inner);
          from += inner;
        } else if (MB_REDUCE_ROWS) {
          for (int i = 0; i < inner; ++i, from += last) sums[i] += sum_range<T>(from, last);
        }
      }
    }
  }
  for (int i = 0; mean && i < y.count; ++i) to[i] /= divisor;
  return Status::kOk;
}

MB_INSTANTIATE_REDUCE

}  // namespace minbuild
