// Images as padded phase planes. A convolution reads an image at o * stride + tap * dilation - pad. Split into `stride`
// phases per axis, with zeros around, every tap sees the outputs' whole grid as one plane at one offset: strides,
// dilations and padding are gone, and what is left are products over contiguous memory.
#ifndef MINBUILD_LIB_NN_PHASE_PLANES_H_
#define MINBUILD_LIB_NN_PHASE_PLANES_H_

#include "minbuild/kernel.h"

namespace minbuild {

// One axis: element q < extent of phase r of a plane is element q * stride + r - pad of the image. Neighbours along the
// axis are `pitch` apart in the plane.
struct PlaneAxis {
  int in, extent, pad, pitch;
  int stride, phases;  // where there are strides
};

// Images of some channels and their planes: all phases of the first channel, then of the next.
template <int Axes, bool Strides>
struct Planes {
  int channels, image, size, step;  // elements of an image, of a plane, and from the planes of a channel to the next
  PlaneAxis axes[Axes];

  // Copies images to their planes, or outwards. What has no counterpart is left alone.
  template <class T>
  MB_NOINLINE void move(T* image_at, T* plane, bool outwards) const {
    using V = Width<kNarrowBytes>::of<T>;
    constexpr int kRow = Axes - 1, kLine = Axes - 2;
    int number = 0;
    do {  // at least one phase: where there are no strides this is no loop
      T *inner = image_at, *outer = plane;
      int counts[Axes], steps[Axes], pixel = 1;
      for (int a = kRow, left = Strides ? number / size : 0; a >= 0; --a) {
        const PlaneAxis& axis = axes[a];
        const int stride = Strides ? axis.stride : 1;
        int pad = axis.pad, first = pad, last = axis.in + pad;
        if (Strides && stride > 1) {
          pad -= left % axis.phases;
          left /= axis.phases;
          first = pad > 0 ? (pad + stride - 1) / stride : 0;
          last = (axis.in + pad + stride - 1) / stride;
        }
        counts[a] = (last < axis.extent ? last : axis.extent) - first;
        steps[a] = stride * pixel;
        inner += (first * stride - pad) * pixel;
        outer += first * axis.pitch;
        pixel *= axis.in;
      }
      const bool dense = !Strides || steps[kRow] == 1;
      for (int c = 0; c < channels; ++c, inner += image, outer += step) {
        for (int i = 0; i < (Axes > 2 ? counts[0] : 1); ++i) {
          T *x = inner, *y = outer;
          if (Axes > 2) x += i * steps[0], y += i * axes[0].pitch;
          for (int j = 0; j < counts[kLine]; ++j, x += steps[kLine], y += axes[kLine].pitch) {
            T *from = outwards ? y : x, *to = outwards ? x : y;
            intptr_t from_step = 1, to_step = 1;
            if (Strides) (outwards ? to_step : from_step) = steps[kRow];
            int left = counts[kRow];
            if (dense)
              for (; left >= V::size; left -= V::size, from += V::size, to += V::size) V::load(from).store(to);
            for (; left > 0; --left, from += from_step, to += to_step) *to = *from;
          }
        }
      }
      plane += size;
    } while (Strides && (number += size) < step);
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PHASE_PLANES_H_
