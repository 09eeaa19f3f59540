// Images as padded phase planes. A convolution reads an image at o * stride + tap * dilation - pad. Split into `stride`
// phases per axis, with zeros around, every tap sees the outputs' whole grid as one plane at one offset: strides,
// dilations and padding are gone, and what is left are products over contiguous memory.
#ifndef MINBUILD_SHARED_IMAGE_H_
#define MINBUILD_SHARED_IMAGE_H_

#include "minbuild/kernel.h"

namespace minbuild {

// One axis: element q < extent of phase r of a plane is element q * stride + r - pad of the image. Neighbours along the
// axis are `pitch` apart in the plane.
struct PlaneAxis {
  int in, extent, stride, pad, phases, pitch;

  // The elements of phase r that the image has are first(r) <= q < last(r).
  int up(int x) const { return stride > 1 ? (x + stride - 1) / stride : x; }
  int first(int r) const { return pad > r ? up(pad - r) : 0; }
  int last(int r) const {
    int end = up(in + pad - r);
    return end < extent ? end : extent;
  }
};

// The planes of `channels` images: all phases of the first, then of the next, `size` elements from one to the next.
template <int Axes>
struct Planes {
  PlaneAxis axes[Axes];
  int channels, phases, size;

  // Sets pitches and size for planes without gaps; false if they are too large to count.
  MB_NOINLINE bool pack() {
    int64_t total = 1;
    phases = 1;
    for (int a = Axes - 1; a >= 0; --a) {
      axes[a].pitch = static_cast<int>(total);
      total *= axes[a].extent;
      phases *= axes[a].phases;  // fewer than the extent times the stride, which is limited
      if (total * phases >= 1 << 28) return false;
    }
    size = static_cast<int>(total);
    return true;
  }
};

// Copies a row of `count` elements, `from_step` and `to_step` apart.
template <class T>
MB_INLINE void copy_row(const T* from, intptr_t from_step, T* to, intptr_t to_step, int count) {
  using V = Width<16>::of<T>;
  if (from_step == 1 && to_step == 1)
    for (; count >= V::size; count -= V::size, from += V::size, to += V::size) V::load(from).store(to);
  for (; count > 0; --count, from += from_step, to += to_step) *to = *from;
}

// Copies images to their planes from `first_phase` on, or outwards. What has no counterpart is left alone.
template <class T, int Axes>
MB_NOINLINE void move_planes(const Planes<Axes>& planes, int first_phase, T* image, T* plane, bool outwards) {
  for (int number = 0; number < planes.phases; ++number, plane += planes.size) {
    int counts[Axes], phase = first_phase + number;
    intptr_t steps[Axes], step = 1;
    T *at = image, *to = plane;
    for (int a = Axes - 1; a >= 0; --a) {
      const PlaneAxis& x = planes.axes[a];
      int r = 0;
      if (x.phases > 1) r = phase % x.phases, phase /= x.phases;
      int first = x.first(r);
      counts[a] = x.last(r) - first;
      to += first * x.pitch;
      at += (first * x.stride + r - x.pad) * step;
      steps[a] = x.stride * step;
      step *= x.in;
    }
    for (int i = 0; i < (Axes > 2 ? counts[0] : 1); ++i) {
      for (int j = 0; j < counts[Axes - 2]; ++j) {
        T* from = at + i * steps[0] * (Axes > 2) + j * steps[Axes - 2];
        T* row = to + i * planes.axes[0].pitch * (Axes > 2) + j * planes.axes[Axes - 2].pitch;
        intptr_t from_step = steps[Axes - 1], row_step = planes.axes[Axes - 1].pitch;
        for (int c = 0; c < planes.channels; ++c, from += step, row += planes.size * planes.phases) {
          if (outwards) {
            copy_row<T>(row, row_step, from, from_step, counts[Axes - 1]);
          } else {
            copy_row<T>(from, from_step, row, row_step, counts[Axes - 1]);
          }
        }
      }
    }
  }
}

// Bytes that a kernel hands out to itself. Nothing may be touched before ok() is known.
struct Scratch {
  char* at;
  int64_t left;

  explicit Scratch(const Tensor& bytes) : at(bytes.data), left(bytes.count) {}
  template <class X>
  X* take(int64_t count) {
    X* found = reinterpret_cast<X*>(at);
    int64_t bytes = count * int64_t(sizeof(X));
    if (left >= 0) left -= bytes;
    at += bytes;
    return found;
  }
  bool ok() const { return left >= 0; }
};

}  // namespace minbuild
#endif  // MINBUILD_SHARED_IMAGE_H_
