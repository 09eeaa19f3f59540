// Images as padded phase planes. A convolution reads an image at o * stride + tap * dilation - pad. Split into `stride`
// phases per axis, with zeros around, every tap sees the outputs' whole grid as one plane at one offset: strides,
// dilations and padding are gone, and what is left are products over contiguous memory.
#ifndef MINBUILD_LIB_NN_PHASE_PLANES_H_
#define MINBUILD_LIB_NN_PHASE_PLANES_H_

#include "lib/gemm/transpose.h"
#include "lib/simd/pairs.h"

// True in libraries of layers so large that moving every other element at a time takes part of their run time.
#if MB_FAST_WASM && defined(MB_CONV_STRIDES)
#define MB_MOVES_PAIRS MB_CONV_STRIDES
#elif defined(MB_CONV_PAIRS) && MB_SHUFFLES
#define MB_MOVES_PAIRS MB_CONV_PAIRS
#else
#define MB_MOVES_PAIRS 0
#endif
#if defined(MB_CONV_PATCHES) && MB_SHUFFLES
#define MB_MOVES_PATCHES MB_CONV_PATCHES
#else
#define MB_MOVES_PATCHES 0
#endif

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
#if MB_MOVES_PAIRS
    if constexpr (Axes == 2 && Strides && sizeof(T) == 4) {
      if (axes[1].stride == 2 && axes[1].phases == 2) return move_pairs(image_at, plane, outwards);
    }
#endif
#if MB_MOVES_PATCHES
    if constexpr (Axes == 2 && Strides && sizeof(T) == 4) {
      if (!outwards && axes[1].stride % 4 == 0 && axes[1].phases == axes[1].stride)
        return fill_patches(image_at, plane);
    }
#endif
#if MB_FAST_WASM
    if constexpr (Axes == 2) {
      if (!Strides || (axes[0].stride | axes[1].stride) == 1) return move_lines(image_at, plane, outwards);
    }
#endif
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

#if MB_FAST_WASM
  // The same where windows move by one element: by whole vectors, the last of which overlaps the one before.
  template <class T>
  MB_NOINLINE void move_lines(T* image_at, T* plane, bool outwards) const {
    using V = Width<kNarrowBytes>::of<T>;
    const PlaneAxis &down = axes[0], &across = axes[1];
    const int lines = smaller(down.in, down.extent - down.pad), length = smaller(across.in, across.extent - across.pad);
    const intptr_t image_pitch = across.in, pitch = down.pitch, from_pitch = outwards ? pitch : image_pitch,
                   to_pitch = outwards ? image_pitch : pitch;
    plane += down.pad * pitch + across.pad;
    for (int c = 0; c < channels; ++c, image_at += image, plane += step) {
      const T* from = outwards ? plane : image_at;
      T* to = outwards ? image_at : plane;
      int left = lines;
      if (length >= V::size) {
        for (; left > 0; --left, from += from_pitch, to += to_pitch) {
          for (int i = 0; i < length - V::size; i += V::size) V::load(from + i).store(to + i);
          V::load(from + length - V::size).store(to + length - V::size);
        }
      } else {
        for (; left > 0; --left, from += from_pitch, to += to_pitch)
          for (int i = 0; i < length; ++i) to[i] = from[i];
      }
    }
  }
#endif

#if MB_MOVES_PAIRS
  // The same where lines have two phases: of a pair of neighbours one is in each.
  template <class T>
  MB_NOINLINE void move_pairs(T* image_at, T* plane, bool outwards) const {
    using V = Vec<T, 4>;
    const PlaneAxis &down = axes[0], &across = axes[1];
    const int left = across.pad / 2, right = (across.pad + 1) / 2;  // where the first pair is
    const int lefts = smaller((across.in + 1) / 2, across.extent - left),
              rights = smaller(across.in / 2, across.extent - right), pairs = smaller(lefts, rights);
    const int parity = across.pad % 2;
    for (int phase = 0; phase < down.phases; ++phase, plane += 2 * size) {
      const int pad = down.pad - phase, first = pad > 0 ? (pad + down.stride - 1) / down.stride : 0;
      const int lines = smaller((down.in + pad + down.stride - 1) / down.stride, down.extent) - first;
      T* channel = image_at + (first * down.stride - pad) * across.in;
      T* own = plane + first * down.pitch;
      for (int c = 0; c < channels; ++c, channel += image, own += step) {
        T *line = channel, *a = own + parity * size + left, *b = own + (1 - parity) * size + right;
        for (int j = 0; j < lines; ++j, line += down.stride * across.in, a += down.pitch, b += down.pitch) {
          int i = 0;
          for (; i <= pairs - V::size; i += V::size) {
            T *even = a + i, *odd = b + i, *both = line + 2 * i;
            if (outwards) {
              const V x = V::load(even), y = V::load(odd);
              in_pairs<0>(x, y).store(both), in_pairs<1>(x, y).store(both + V::size);
            } else {
              const V x = V::load(both), y = V::load(both + V::size);
              of_pairs<0>(x, y).store(even), of_pairs<1>(x, y).store(odd);
            }
          }
          for (; i < lefts || i < rights; ++i) {
            if (i < lefts) *(outwards ? line + 2 * i : a + i) = *(outwards ? a + i : line + 2 * i);
            if (i < rights) *(outwards ? line + 2 * i + 1 : b + i) = *(outwards ? b + i : line + 2 * i + 1);
          }
        }
      }
    }
  }
#endif
#if MB_MOVES_PATCHES
  // Images to their planes where lines have a multiple of four phases: the elements that windows step over are a row of a
  // matrix, and a phase is a column of it.
  template <class T>
  MB_NOINLINE void fill_patches(const T* image_at, T* plane) const {
    constexpr int kRows = 4;
    const PlaneAxis &down = axes[0], &across = axes[1];
    const int stride = across.stride, end = smaller(across.in + across.pad, across.extent * stride);
    const int first = (across.pad + stride - 1) / stride, last = end / stride,
              whole = last - first >= kRows ? last : first;
    for (int c = 0; c < channels; ++c, image_at += image, plane += step)
      for (int i = down.pad; i < down.in + down.pad; ++i) {
        const int phase = i % down.stride, row = i / down.stride;
        if (phase >= down.phases || row >= down.extent) continue;
        const T* const line = image_at + (i - down.pad) * across.in - across.pad;
        T* const to = plane + phase * stride * size + row * down.pitch;
        for (int at = first; at < whole; at += kRows) {
          if (at > whole - kRows) at = whole - kRows;
          const T* rows[kRows];
          for (int r = 0; r < kRows; ++r) rows[r] = line + (at + r) * stride;
          transpose_group(rows, stride, to + at, size, 0);
        }
        for (int j = across.pad; j < end; ++j) {
          if (j == first * stride) j = whole * stride;
          if (j < end) to[j % stride * size + j / stride] = line[j];
        }
      }
  }
#endif
  static int smaller(int x, int y) { return x < y ? x : y; }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PHASE_PLANES_H_
