// Det: determinants by elimination with pivots, and their gradients by cofactors.
#include "minbuild/kernel.h"

namespace minbuild {

template <class T>
MB_INLINE T size_of(T x) {
  return x < 0 ? -x : x;
}

// The determinant of x: [n,n], which becomes its triangle.
template <class T>
MB_NOINLINE T eliminate(T* x, int n) {
  T det = 1;
  for (int i = 0; i < n; ++i) {
    T *row = x + i * n, *pivot = row;
    for (T* other = row; other < x + n * n; other += n)
      if (size_of(other[i]) > size_of(pivot[i])) pivot = other;
    if (pivot != row) {
      for (int j = i; j < n; ++j) {
        T was = row[j];
        row[j] = pivot[j];
        pivot[j] = was;
      }
      det = -det;
    }
    det *= row[i];
    if (row[i] == 0) break;
    for (T* other = row + n; other < x + n * n; other += n) {
      T factor = other[i] / row[i];
      for (int j = i + 1; j < n; ++j) other[j] -= factor * row[j];
    }
  }
  return det;
}

// Matrices [.., n, n], as many as there are elements in y, with room for one of them.
MB_INLINE bool are_squares(const Tensor& x, const Tensor& y, const Tensor& room, int size, int* n) {
  if (x.rank < 2) return false;
  *n = x.dims[x.rank - 1];
  int64_t elements = static_cast<int64_t>(*n) * *n;
  return x.dims[x.rank - 2] == *n && elements * y.count == x.count && room.count >= elements * size;
}

// y[i] = |x[i]|
template <class T>
Status det(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &room = call[2];
  int n;
  if (!are_squares(x, y, room, sizeof(T), &n)) return Status::kBadPlan;
  const T* from = x.as<T>();
  for (int i = 0; i < y.count; ++i, from += n * n) {
    copy_bytes(room.scratch<T>(), from, n * n * sizeof(T));
    y.as<T>()[i] = eliminate(room.scratch<T>(), n);
  }
  return Status::kOk;
}

// dx[i][r][c] = dy[i] * the determinant of x[i] with row r replaced by the unit vector of column c: right for matrices
// that have no inverse, too
template <class T>
Status det_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[1], &x = call[2], &room = call[3];
  int n;
  if (dx.count != x.count || !are_squares(x, dy, room, sizeof(T), &n)) return Status::kBadPlan;
  const T* from = x.as<T>();
  T *to = dx.as<T>(), *minor = room.scratch<T>();
  for (int i = 0; i < dy.count; ++i, from += n * n)
    for (int at = 0; at < n * n; ++at, ++to) {
      copy_bytes(minor, from, n * n * sizeof(T));
      clear_bytes(minor + at / n * n, n * sizeof(T));
      minor[at] = 1;
      *to = dy.as<T>()[i] * eliminate(minor, n);
    }
  return Status::kOk;
}

MB_INSTANTIATE_DET

}  // namespace minbuild
