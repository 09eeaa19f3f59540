// Images as padded phase planes. A convolution reads an image at o * stride + tap * dilation - pad. Split into `stride`
// phases per axis, with zeros around, every tap sees the outputs' whole grid as one plane at one offset: strides,
// dilations and padding are gone, and what is left are products over contiguous memory.
#ifndef MINBUILD_SHARED_IMAGE_H_
#define MINBUILD_SHARED_IMAGE_H_

#include "minbuild/kernel.h"

namespace minbuild {

// One axis: element q < extent of phase r of a plane is element q * stride + r - pad of the image. Neighbours along the
// axis are `pitch` apart in the plane. Without strides there is one phase.
template <bool Strides>
struct PlaneAxis {
  int in, extent, pad, pitch, stride_given, phases_given;

  int stride() const { return Strides ? stride_given : 1; }
  int phases() const { return Strides ? phases_given : 1; }

  // Splits the number of a phase into the number along this axis, which is returned, and the rest.
  int split(int* phase) const {
    if (phases() == 1) return 0;
    int r = *phase % phases();
    *phase /= phases();
    return r;
  }
  // Drops the elements that phase r of the image lacks, and keeps that phase only. Returns how many before the others.
  MB_NOINLINE int crop(int r) {
    pad -= r;
    int round = stride() - 1, first = pad > 0 ? (pad + round) / stride() : 0, last = (in + pad + round) / stride();
    extent = (last < extent ? last : extent) - first;
    pad -= first * stride();
    phases_given = 1;
    return first;
  }
};

// The planes of `channels` images: all phases of the first, then of the next, `size` elements from one to the next.
template <int Axes, bool Strides>
struct Planes {
  PlaneAxis<Strides> axes[Axes];
  int channels, size, phases_given;

  int phases() const { return Strides ? phases_given : 1; }

  // Sets pitches and sizes for planes without gaps; false if they are too large to count.
  MB_NOINLINE bool pack() {
    int64_t total = 1;
    phases_given = 1;
    for (int a = Axes - 1; a >= 0; --a) {
      axes[a].pitch = static_cast<int>(total);
      total *= axes[a].extent;
      phases_given *= axes[a].phases();  // at most the stride, which times the extent is limited
      if (total * phases_given >= 1 << 27) return false;
    }
    size = static_cast<int>(total);
    return true;
  }
};

// Where a copy reads or writes: its first element, and the steps along each axis and between channels.
template <class T, int Axes>
struct Place {
  T* at;
  intptr_t steps[Axes + 1];
};

// Copies images to their planes, or outwards. What has no counterpart is left alone.
template <class T, int Axes, bool Strides>
MB_NOINLINE void move_planes(const Planes<Axes, Strides>& planes, T* image, T* plane, bool outwards) {
  using V = Width<16>::of<T>;
  for (int number = 0; number < planes.phases(); ++number, plane += planes.size) {
    Place<T, Axes> places[2] = {{image, {}}, {plane, {}}};
    int counts[Axes], phase = number;
    intptr_t step = 1;
    for (int a = Axes - 1; a >= 0; --a) {
      PlaneAxis<Strides> axis = planes.axes[a];
      places[1].at += axis.crop(axis.split(&phase)) * axis.pitch;
      places[0].at -= axis.pad * step;
      places[0].steps[a] = axis.stride() * step;
      places[1].steps[a] = axis.pitch;
      counts[a] = axis.extent;
      step *= axis.in;
    }
    places[0].steps[Axes] = step;
    places[1].steps[Axes] = planes.size * planes.phases();
    const Place<T, Axes>&source = places[outwards], &target = places[!outwards];
    for (int i = 0; i < (Axes > 2 ? counts[0] : 1); ++i) {
      for (int j = 0; j < counts[Axes - 2]; ++j) {
        const T* row = source.at + j * source.steps[Axes - 2];
        T* to_row = target.at + j * target.steps[Axes - 2];
        if (Axes > 2) row += i * source.steps[0], to_row += i * target.steps[0];
        for (int c = 0; c < planes.channels; ++c, row += source.steps[Axes], to_row += target.steps[Axes]) {
          const T* from = row;
          T* to = to_row;
          int left = counts[Axes - 1];
          intptr_t from_step = source.steps[Axes - 1], to_step = target.steps[Axes - 1];
          if (from_step == 1 && to_step == 1)
            for (; left >= V::size; left -= V::size, from += V::size, to += V::size) V::load(from).store(to);
          for (; left > 0; --left, from += from_step, to += to_step) *to = *from;
        }
      }
    }
  }
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_IMAGE_H_
