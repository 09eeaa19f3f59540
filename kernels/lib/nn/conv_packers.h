// Packers of what convolutions multiply with: planes of an image (phase_planes.h) as the taps of a window read them. A
// packer writes one panel of a product (lib/gemm/packer.h); nothing but panels holds the elements taps times.
#ifndef MINBUILD_LIB_NN_CONV_PACKERS_H_
#define MINBUILD_LIB_NN_CONV_PACKERS_H_

#include "lib/gemm/pack.h"

namespace minbuild {

// The rows that filters are multiplied with: channel by channel, what every tap reads of it.
template <class T>
struct PlanePacker {
  const T* planes;
  const int* places;  // of the taps
  int taps, step;

  MB_INLINE void operator()(T* panel, int k, int depth, int j, int columns, int width) const {
    using V = Width<kNarrowBytes>::of<T>;
    const T* from = planes + intptr_t(k / taps) * step + j;
    for (int tap = k % taps; depth > 0; --depth, panel += width) {
      const T* x = from + places[tap];
      for (int i = 0; i < columns; i += kTileVectors * V::size)  // tiles are as wide or a multiple
        unroll<kTileVectors>([&](auto v) MB_LAMBDA { V::load(x + i + v * V::size).store(panel + i + v * V::size); });
      if (++tap == taps) tap = 0, from += step;
    }
  }
};

// Where outputs stand in the planes: rows of outputs, one after the other and image after image.
struct OutputRows {
  int width, height, depth;
  intptr_t row, plane, image;  // elements of the planes from one row, one slice and one image to the next

  // Iterates over outputs by contiguous runs.
  struct RunIterator {
    const OutputRows& rows;
    int x, y, z;
    intptr_t image;

    MB_INLINE RunIterator(const OutputRows& of, intptr_t output) : rows(of) {
      x = int(output % of.width);
      output /= of.width;
      y = int(output % of.height);
      output /= of.height;
      z = int(output % of.depth);
      image = output / of.depth;
    }
    MB_INLINE intptr_t place() const { return image * rows.image + z * rows.plane + y * rows.row + x; }
    MB_INLINE intptr_t run(intptr_t most) const { return most < rows.width - x ? most : rows.width - x; }
    MB_INLINE void advance(intptr_t run) {
      x += int(run);
      if (x < rows.width) return;
      x = 0;
      if (++y < rows.height) return;
      y = 0;
      if (++z < rows.depth) return;
      z = 0;
      ++image;
    }
  };
};

// The inputs of the taps: row k = (channel, tap) of X begins at planes + channel * step + places[tap].
template <class T>
struct TapRows {
  const T* planes;
  const int* places;
  int taps;
  intptr_t step;
  OutputRows rows;

  MB_INLINE const T* row(int k) const { return planes + k / taps * step + places[k % taps]; }
};

// Columns of X: some outputs as every tap reads them. Runs are copied by whole vectors; what is too much is copied over.
template <class T>
struct ColumnPacker : TapRows<T> {
  MB_INLINE void operator()(T* panel, int k, int depth, int j, int columns, int width) const {
    using V = Width<kNarrowBytes>::of<T>;
    constexpr int kMostRuns = kMostTileBytes / int(sizeof(T));
    intptr_t place[kMostRuns];
    int length[kMostRuns], runs = 0;
    OutputRows::RunIterator iterator(this->rows, j);
    for (int left = columns; left > 0; left -= length[runs++]) {
      place[runs] = iterator.place();
      length[runs] = int(iterator.run(left));
      iterator.advance(length[runs]);
    }
    // Whole vectors where no run ends within one, which are most: then every row is the same few copies.
    constexpr int kPair = 2 * V::size;
    intptr_t vector[kMostRuns / V::size];
    bool whole = true;
    int at = 0;
    for (int r = 0; r < runs; ++r) {
      whole &= length[r] % V::size == 0;
      for (int i = 0; whole && i < length[r]; i += V::size) vector[at++] = place[r] + i;
    }
    whole &= columns == width && width % kPair == 0;
    const T* channel = this->planes + k / this->taps * this->step;
    for (int tap = k % this->taps; depth > 0; --depth, panel += width) {
      const T* x = channel + this->places[tap];
      if (whole) {
        for (int i = 0; i < at; i += 2) {
          V::load(x + vector[i]).store(panel + i * V::size);
          V::load(x + vector[i + 1]).store(panel + (i + 1) * V::size);
        }
      } else {
        T* to = panel;
        for (int r = 0; r < runs; to += length[r++])
          for (int i = 0; i < length[r]; i += V::size) V::load(x + place[r] + i).store(to + i);
      }
      if (++tap == this->taps) tap = 0, channel += this->step;
    }
  }
};

// Columns of X': some taps, at outputs from k on.
template <class T>
struct TransposedPacker : TapRows<T> {
  struct Body {
    template <class W>
    static MB_INLINE void run(const TransposedPacker* taps, T* panel, int k, int depth, int j, int columns, int width) {
      constexpr int kRows = kGroup<T, W>;
      for (int at = 0; at < columns; at += kRows) {
        const T* first[kRows];
        for (int i = 0; i < kRows; ++i) first[i] = taps->row(j + (at + i < columns ? at + i : at));
        T* to = panel + at;
        OutputRows::RunIterator iterator(taps->rows, k);
        for (intptr_t left = depth, run; left > 0; left -= run, to += run * width) {
          run = iterator.run(left);
          const T* from[kRows];
          for (int i = 0; i < kRows; ++i) from[i] = first[i] + iterator.place();
          transpose_group(from, run, to, width, 0);
          iterator.advance(run);
        }
      }
    }
  };
  MB_INLINE void operator()(T* panel, int k, int depth, int j, int columns, int width) const {
    run_at<Body>(vector_bytes(), this, panel, k, depth, j, columns, width);
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_CONV_PACKERS_H_
