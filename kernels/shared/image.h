// Images as padded phase planes. A convolution reads an image at o * stride + tap * dilation - pad. Split into `stride`
// phases per axis, with zeros around, every tap sees the outputs' whole grid as one plane at one offset: strides,
// dilations and padding are gone, and what is left are products over contiguous memory.
#ifndef MINBUILD_SHARED_IMAGE_H_
#define MINBUILD_SHARED_IMAGE_H_

#include "minbuild/kernel.h"

namespace minbuild {

// One axis of an image and of its planes: element q < extent of phase r is element q * stride + r - pad of the image.
// Neighbours along the axis are `pitch` apart in the planes.
struct PlaneAxis {
  int in, extent, stride, pad, phases, pitch;
};

template <int Axes>
struct Planes {
  PlaneAxis axes[Axes];
  int size;  // elements of one plane

  // Pitches and size for planes that lie densely; false if they are too large to count.
  bool pack() {
    int64_t total = 1;
    for (int a = Axes - 1; a >= 0; --a) {
      axes[a].pitch = static_cast<int>(total);
      total *= axes[a].extent;
      if (total >= 1 << 28) return false;
    }
    size = static_cast<int>(total);
    return true;
  }
};

// Copies between an image and one of its planes, outwards or inwards. What has no counterpart is left alone.
template <class T, int Axes>
MB_NOINLINE void move_plane(const Planes<Axes>& planes, int phase, T* image, T* plane, bool outwards) {
  int counts[Axes];
  intptr_t steps[Axes], step = 1;
  for (int a = Axes - 1; a >= 0; --a) {
    const PlaneAxis& x = planes.axes[a];
    int shift = x.pad, round = x.stride - 1;
    if (x.phases > 1) {
      shift -= phase % x.phases;
      phase /= x.phases;
    }
    int first = shift > 0 ? (shift + round) / x.stride : 0;
    int last = (x.in + shift + round) / x.stride;
    counts[a] = (last < x.extent ? last : x.extent) - first;
    if (counts[a] <= 0) return;
    plane += first * x.pitch;
    image += (first * x.stride - shift) * step;
    steps[a] = x.stride * step;
    step *= x.in;
  }
  const PlaneAxis *rows = &planes.axes[Axes - 2], *slices = &planes.axes[0];
  for (int i = 0; i < (Axes > 2 ? counts[0] : 1); ++i) {
    for (int j = 0; j < counts[Axes - 2]; ++j) {
      T* at = image + j * steps[Axes - 2];
      T* to = plane + j * rows->pitch;
      intptr_t at_step = steps[Axes - 1], to_step = 1;
      if (outwards) {
        T* was = at;
        at = to, to = was;
        to_step = at_step, at_step = 1;
      }
      for (int k = counts[Axes - 1]; k > 0; --k, at += at_step, to += to_step) *to = *at;
    }
    image += steps[0];
    plane += slices->pitch;
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
    at += left >= 0 ? bytes : 0;
    return found;
  }
  bool ok() const { return left >= 0; }
};

}  // namespace minbuild
#endif  // MINBUILD_SHARED_IMAGE_H_
