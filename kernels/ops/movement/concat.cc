// Concatenation and splitting: one piece of a tensor copied in or out.
#include "minbuild/kernel.h"

namespace minbuild {

// One of y and x is a piece of the other along an axis. With everything behind the axis folded into it, both are
// matrices of as many rows, and the piece stands in some columns of the whole. place: [rows, first column].
template <class T>
Status copy_piece(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &place = call[2];
  bool out = call.params[0] != 0;  // y is the piece
  const Tensor &whole = out ? x : y, &piece = out ? y : x;
  if (place.rank != 2) return Status::kBadPlan;
  if (piece.count == 0) return Status::kOk;
  int rows = place.dims[0];
  if (rows == 0) return Status::kBadPlan;
  int width = piece.count / rows, stride = whole.count / rows, at = place.dims[1];
  if (width * rows != piece.count || stride * rows != whole.count || at > stride - width) return Status::kBadPlan;
  T *to = y.as<T>() + (out ? 0 : at), *from = x.as<T>() + (out ? at : 0);
  int to_stride = out ? width : stride, from_stride = out ? stride : width;
#if MB_THREADS > 1
  for_ranges(call.team, piece.count, piece.count * int64_t(sizeof(T)), 1, [&](intptr_t first, intptr_t count) {
    // A part begins and ends anywhere in a row: weights of one row are divided, too.
    int left = int(count), row = int(first) / width, column = int(first) % width;
    for (int some; left > 0; left -= some, ++row, column = 0) {
      some = width - column < left ? width - column : left;
      copy_bytes(to + row * to_stride + column, from + row * from_stride + column, some * sizeof(T));
    }
  });
#else
  for (int i = 0; i < rows; ++i, to += to_stride, from += from_stride) copy_bytes(to, from, width * sizeof(T));
#endif
  return Status::kOk;
}

MB_INSTANTIATE_CONCAT

}  // namespace minbuild
