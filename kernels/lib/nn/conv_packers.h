// Packers of what convolutions multiply with: planes of an image (phase_planes.h) as the taps of a window read them. A
// packer writes one panel of a product (lib/gemm/packer.h); nothing but panels holds the elements taps times.
#ifndef MINBUILD_LIB_NN_CONV_PACKERS_H_
#define MINBUILD_LIB_NN_CONV_PACKERS_H_

#include "lib/gemm/pack.h"

namespace minbuild {

// True where tiles are never wider than kTileVectors vectors of kNarrowBytes.
#if defined(__wasm_simd128__)
constexpr bool kNarrowTiles = true;
#else
constexpr bool kNarrowTiles = false;
#endif

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
      for (int i = 0; i < columns; i += kTileVectors * V::size) {  // tiles are as wide or a multiple
        unroll<kTileVectors>([&](auto v) MB_LAMBDA { V::load(x + i + v * V::size).store(panel + i + v * V::size); });
        if (kNarrowTiles) break;
      }
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
  // Leaves a whole panel to a tile, if few runs make each vector of a row.
  MB_NOINLINE bool leaves(PanelCopies<T>& copies, int k, int depth, int j, int columns, int width) const {
    if (columns < width) return false;
    const int lanes = width / kTileVectors;
    OutputRows::RunIterator iterator(this->rows, j);
    for (auto& source : copies.sources) {
      int done = 0;
      for (int i = 0; i < kMostCopies; ++i) {
        source.from[i] = done < lanes ? iterator.place() - done : source.from[i - 1];
        const int length = int(iterator.run(lanes - done));
        if (length > 0) done += length, iterator.advance(length);
        if (i + 1 < kMostCopies) source.ends[i] = done;
      }
      if (done < lanes) return false;
    }
    copies.left = true;
    copies.x = this->planes;
    if (copies.first == k) return true;
    copies.first = k;
    for (int i = 0; i < depth; ++i) copies.rows[i] = int32_t(this->row(k + i) - this->planes);
    return true;
  }

  // The same copies for each of `depth` rows, from `x` + from[i] to to[i]; all of them unrolled if kCopies is not 0.
  template <class V, int kCopies>
  static MB_INLINE void copy_rows(const ColumnPacker& taps, T* panel, int k, int depth, int width, const intptr_t* from,
                                  const intptr_t* to, int copies) {
    intptr_t own_from[kCopies + 1], own_to[kCopies + 1];
    unroll<kCopies>([&](auto i) MB_LAMBDA { own_from[i] = from[i], own_to[i] = to[i]; });
    const T* channel = taps.planes + k / taps.taps * taps.step;
    const int* place = taps.places + k % taps.taps;
    const int* const end = taps.places + taps.taps;
    const intptr_t step = taps.step;
    for (; depth > 0; --depth, panel += width) {
      const T* x = channel + *place;
      if constexpr (kCopies != 0) {
        unroll<kCopies>([&](auto i) MB_LAMBDA { V::load(x + own_from[i]).store(panel + own_to[i]); });
      } else {
        for (int i = 0; i < copies; ++i) V::load(x + from[i]).store(panel + to[i]);
      }
      if (++place == end) place = taps.places, channel += step;
    }
  }

  struct Body {
    template <class W>
    static MB_INLINE void run(const ColumnPacker* taps, T* panel, int k, int depth, int j, int columns, int width) {
      using V = typename W::template of<T>;
      constexpr int kMost = kMostTileBytes / int(sizeof(T));
      intptr_t from[kMost], to[kMost];
      int copies = 0;
      OutputRows::RunIterator iterator(taps->rows, j);
      for (int done = 0, length; done < columns; done += length) {
        length = int(iterator.run(columns - done));
        for (int i = 0; i < length; i += V::size, ++copies) from[copies] = iterator.place() + i, to[copies] = done + i;
        iterator.advance(length);
      }
      if (W::bytes == 64) return copy_rows<V, 0>(*taps, panel, k, depth, width, from, to, copies);
      if (copies == kTileVectors) copy_rows<V, kTileVectors>(*taps, panel, k, depth, width, from, to, copies);
      else if (copies == kTileVectors + 1)
        copy_rows<V, kTileVectors + 1>(*taps, panel, k, depth, width, from, to, copies);
      else copy_rows<V, 0>(*taps, panel, k, depth, width, from, to, copies);
    }
  };
  MB_INLINE void operator()(T* panel, int k, int depth, int j, int columns, int width) const {
    run_at<Body, 64>(widest_bytes(), this, panel, k, depth, j, columns, width);
  }
};

// Columns of X': some taps, at outputs from k on.
template <class T>
struct TransposedPacker : TapRows<T> {
  static bool leaves(PanelCopies<T>&, int, int, int, int, int) { return false; }
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

// The rows of W' as a convolution of outputs multiplies with them: w[M,C,taps] as [C,M*taps].
template <class T>
struct ExchangedFilters {
  const T* w;
  static constexpr intptr_t kWindow = 9;  // elements of most windows: 3 x 3
  int channels, taps;
  intptr_t depth;  // M * taps

  // Rows and depths from where the element `a` would be, if w were that matrix. Windows of some rows are neighbours: they
  // are read filter by filter, as those of the next filter may share few sets of the nearest cache with them.
  void operator()(T* to, intptr_t step, const T* a, intptr_t count, intptr_t elements) const {
    using V = Vec<T, 4>;
    constexpr intptr_t kRowsAtOnce = 8;
    const intptr_t first = (a - w) % depth, filter = first / taps, filter_step = intptr_t(channels) * taps;
    const T* from = w + filter * filter_step + (a - w) / depth * taps;
    for (intptr_t rows; count > 0; count -= rows, to += rows * step, from += rows * taps) {
      rows = count < kRowsAtOnce ? count : kRowsAtOnce;
      const T* windows = from;
      T* column = to;
      intptr_t tap = first - filter * taps, left = elements;
      for (intptr_t some; left > 0; left -= some, column += some, tap = 0, windows += filter_step) {
        some = taps - tap < left ? taps - tap : left;
        const T* x = windows + tap;
        T* at = column;
        if (some == kWindow && taps == kWindow) {
          for (intptr_t row = 0; row < rows; ++row, x += kWindow, at += step) {
            __builtin_prefetch(x + kRowsAtOnce * kWindow);
            const V first = V::load(x), second = V::load(x + V::size), last = V::load(x + kWindow - V::size);
            first.store(at), second.store(at + V::size), last.store(at + kWindow - V::size);
          }
        } else {
          for (intptr_t row = 0; row < rows; ++row, x += taps, at += step)
            for (intptr_t i = 0; i < some; ++i) at[i] = x[i];
        }
      }
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_CONV_PACKERS_H_
