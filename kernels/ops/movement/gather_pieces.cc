// Pieces of tensors along an axis put together in one.
#include "lib/loops/blas1.h"

namespace minbuild {

// y = x, or y += x, for `size` places along an axis, from place `start` of x on and from place `to` of y. place: [rows,
// elements of a place], with everything before the axis folded into rows and everything behind it into places.
template <class T>
Status gather_piece(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &place = call[2];
  if (place.rank != 2 || place.dims[0] == 0) return Status::kBadPlan;
  const int rows = place.dims[0], each = place.dims[1], to_stride = y.count / rows, from_stride = x.count / rows;
  const int64_t start = int64_t(call.params[0]) * each, to = int64_t(call.params[1]) * each,
                some = int64_t(call.params[2]) * each;
  if (start + some > from_stride || to + some > to_stride) return Status::kBadPlan;
  const int width = int(some);
  const bool adds = call.adds(0);
  T* const at = y.as<T>() + to;
  const T* const from = x.as<T>() + start;
  const auto put = [&](int row, int column, int count) {
    T* const here = at + intptr_t(row) * to_stride + column;
    const T* const there = from + intptr_t(row) * from_stride + column;
    if (adds) add_range(here, there, count);
    else copy_bytes(here, there, count * sizeof(T));
  };
#if MB_THREADS > 1
  if (width == 0) return Status::kOk;
  const intptr_t all = intptr_t(rows) * width;
  for_ranges(call.team, all, all * intptr_t(sizeof(T)), 64, [&](intptr_t first, intptr_t count) {
    // A part begins and ends anywhere in a row: weights of one row are divided, too.
    int left = int(count), row = int(first) / width, column = int(first) % width;
    for (int part; left > 0; left -= part, ++row, column = 0) {
      part = width - column < left ? width - column : left;
      put(row, column, part);
    }
  });
#else
  for (int row = 0; row < rows; ++row) put(row, 0, width);
#endif
  return Status::kOk;
}

MB_INSTANTIATE_GATHER_PIECES

}  // namespace minbuild
