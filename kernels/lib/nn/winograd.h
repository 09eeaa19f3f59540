// Winograd's minimal filtering for convolutions with windows of 3 x 3 that move by one element (S. Winograd, Arithmetic
// Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016). Two
// by two outputs take 16 multiplications a channel in place of 36:
//
//   outputs           y = A' [(G w G') * (B' x B)] A     summed over channels
//   weight gradients  w = C' [(H y H') * (B' x B)] C     summed over tiles
//
//   B' = 1  0 -1  0    G = 1    0    0      A' = 1  1  1  0    H = 1    0      C' = 1  1  1  0
//        0  1  1  0        1/2  1/2  1/2         0  1 -1 -1        1/2  1/2         0  1 -1  0
//        0 -1  1  0        1/2 -1/2  1/2                           1/2 -1/2         0  1  1 -1
//        0  1  0 -1        0    0    1                             0    1
//
// Factors of 1 and 1/2 round nothing, and a sum has one term a channel in place of nine. A tile is two by two outputs and
// the four by four inputs that they see. Transformed it has 16 elements, four in each of four lines, and each of them
// belongs to another matrix: of filters and channels, of channels and tiles, or of filters and tiles.
#ifndef MINBUILD_LIB_NN_WINOGRAD_H_
#define MINBUILD_LIB_NN_WINOGRAD_H_

#include "lib/simd/pairs.h"

namespace minbuild {

constexpr int kTileLines = 4, kTileSize = 2, kWindow = 3;
// Tiles of a row that are transformed at once, the elements of a line of them, and what whole vectors may reach beyond.
constexpr int kRunTiles = 64, kBeyondRun = 32, kRunElements = kTileSize * kRunTiles + kBeyondRun;

// Some lines of some tiles, which are columns of matrices with rows `pitch` apart.
struct TileBlock {
  intptr_t first, count, pitch;
  int line, lines;
};

// Images [count,channels,height,width] and their tiles.
template <class T>
struct TiledImages {
  T* data;
  int channels, height, width;
  int down, across;          // tiles of an image
  int pad_down, pad_across;  // of inputs

  // Tiles of a block that are neighbours in a row.
  struct Run {
    const TiledImages& of;
    intptr_t image, done = 0;
    int row, column, tiles = 0;

    MB_INLINE Run(const TiledImages& images, intptr_t first) : of(images) {
      column = int(first % of.across);
      first /= of.across;
      row = int(first % of.down);
      image = first / of.down;
    }
    // True if there is another; `count` is of the block.
    MB_INLINE bool next(intptr_t count) {
      done += tiles, column += tiles;
      if (column == of.across) {
        column = 0;
        if (++row == of.down) row = 0, ++image;
      }
      if (done == count) return false;
      const intptr_t left = count - done;
      tiles = of.across - column < kRunTiles ? of.across - column : kRunTiles;
      if (left < tiles) tiles = int(left);
      return true;
    }
    MB_INLINE T* plane(int channel) const {
      return of.data + (image * of.channels + channel) * (intptr_t(of.height) * of.width);
    }
  };
};

// A line of a transform is the sum of two rows of an image with factors.
struct TwoRows {
  int first, second;
  float first_factor, second_factor;
};
constexpr TwoRows kInputLines[kTileLines] = {{0, 2, 1, -1}, {1, 2, 1, 1}, {2, 1, 1, -1}, {1, 3, 1, -1}};
constexpr TwoRows kGradientLines[kTileLines] = {{0, 1, 1, 0}, {0, 1, .5, .5}, {0, 1, .5, -.5}, {0, 1, 0, 1}};

// Images to lines of tiles: inputs, B' x B, or gradients of outputs, H y H'.
template <class T, bool Gradient>
struct TransformImages {
  static constexpr int kRows = Gradient ? kTileSize : kTileLines;

  template <class W>
  static MB_INLINE void run(const TiledImages<T>* images, const TileBlock* block, int channel, int channels, T* to,
                            intptr_t matrix) {
    using V = typename W::template of<T>;
    const intptr_t width = images->width;
    const typename TiledImages<T>::Run start(*images, block->first);
    // All lines are added before any is transformed: loads across two stores wait for both.
    T zeros[kRunElements] = {}, added[kTileLines][kRunElements] = {};
    for (const int end = channel + channels; channel < end; ++channel, to += block->pitch) {
      for (auto run = start; run.next(block->count);) {
        const int above = kTileSize * run.row - images->pad_down, before = kTileSize * run.column - images->pad_across,
                  elements = kTileSize * run.tiles + kRows - kTileSize;
        const int first = before < 0 ? -before : 0;
        int last = width - before < elements ? int(width) - before : elements;
        if (last < first) last = first;
        const T *rows[kRows], *row = run.plane(channel) + above * width + before;
        unroll<kRows>([&](auto k) MB_LAMBDA {
          rows[k] = unsigned(above + k) < unsigned(images->height) ? row : zeros;
          row += width;
        });
        for (int l = 0; l < block->lines; ++l) add_line<V>(rows, block->line + l, first, last, added[l]);
        T* out = to + run.done;
        for (int l = 0; l < block->lines; ++l, out += kTileLines * matrix)
          transform<V>(added[l], run.tiles, out, matrix);
      }
    }
  }

  // A line of elements from `first` to `last`, between zeros for padding, of which there are three at most.
  template <class V>
  static MB_INLINE void add_line(const T* const (&rows)[kRows], int line, int first, int last, T* to) {
    using Half = Vec<T, (V::size + 1) / 2>;
    const TwoRows& two = (Gradient ? kGradientLines : kInputLines)[line];
    const T *a = rows[two.first], *b = rows[two.second];
    const auto add = [&](auto lanes, int i) MB_LAMBDA {
      using U = Vec<T, lanes>;
      muladd(U::load(b + i), U(T(two.second_factor)), U::load(a + i) * U(T(two.first_factor))).store(to + i);
    };
    Vec<T, 4>(T(0)).store(to);
    int i = first;
    for (; i <= last - V::size; i += V::size) add(Constant<V::size>{}, i);
    if (i > first) {
      if (i < last) add(Constant<V::size>{}, last - V::size);
    } else if (last - first >= Half::size) {
      add(Constant<Half::size>{}, first), add(Constant<Half::size>{}, last - Half::size);
    } else {
      for (; i < last; ++i) add(Constant<1>{}, i);
    }
    Vec<T, 4>(T(0)).store(to + last);
  }

  // A line of added rows along its columns, to the matrices of a line.
  template <class V>
  static MB_INLINE void transform(const T* line, int tiles, T* to, intptr_t matrix) {
    do {
      const V low = V::load(line), high = V::load(line + V::size);
      const V even = of_pairs<0>(low, high), odd = of_pairs<1>(low, high);
      if constexpr (Gradient) {
        const V half = T(.5);
        even.store(to), odd.store(to + 3 * matrix);
        (half * even + half * odd).store(to + matrix), (half * even - half * odd).store(to + 2 * matrix);
      } else {
        const V later_low = V::load(line + 2), later_high = V::load(line + 2 + V::size);
        const V even2 = of_pairs<0>(later_low, later_high), odd2 = of_pairs<1>(later_low, later_high);
        (even - even2).store(to), (odd + even2).store(to + matrix);
        (even2 - odd).store(to + 2 * matrix), (odd - odd2).store(to + 3 * matrix);
      }
      line += kTileSize * V::size, to += V::size;
    } while ((tiles -= V::size) > 0);
  }
};

// Adds some lines of A' x A, of some filters, to outputs; those of the first line begin with the bias, or zero.
template <class T>
struct FinishOutputs {
  template <class W>
  static MB_INLINE void run(const TiledImages<T>* images, const TileBlock* block, int filter, int filters, const T* x,
                            intptr_t matrix, const T* bias) {
    using V = typename W::template of<T>;
    const bool all = block->lines == kTileLines;
    const typename TiledImages<T>::Run first(*images, block->first);
    T lines[kTileSize][kRunElements];
    for (const int end = filter + filters; filter < end; ++filter, x += block->pitch) {
      const V start = bias && block->line == 0 ? bias[filter] : T(0);
      for (auto run = first; run.next(block->count);) {
        for (int t = 0; t < run.tiles; t += V::size) {
          V y[kTileSize][kTileSize];
          unroll<kTileSize>([&](auto r) MB_LAMBDA { y[r][0] = y[r][1] = start; });
          const T* each = x + run.done + t;
          unroll<kTileLines>([&](auto line) MB_LAMBDA {
            if (!all && block->line != line) return;
            const V a = V::load(each), b = V::load(each + matrix), c = V::load(each + 2 * matrix);
            const V left = a + b + c, right = b - c - V::load(each + 3 * matrix);
            if (line < 3) y[0][0] = y[0][0] + left, y[0][1] = y[0][1] + right;
            if (line == 1) y[1][0] = y[1][0] + left, y[1][1] = y[1][1] + right;
            if (line > 1) y[1][0] = y[1][0] - left, y[1][1] = y[1][1] - right;
            each += kTileLines * matrix;
          });
          unroll<kTileSize>([&](auto r) MB_LAMBDA {
            T* to = lines[r] + kTileSize * t;
            in_pairs<0>(y[r][0], y[r][1]).store(to);
            in_pairs<1>(y[r][0], y[r][1]).store(to + V::size);
          });
        }
        const int above = kTileSize * run.row, before = kTileSize * run.column;
        const int most = kTileSize * run.tiles, room = images->width - before, columns = room < most ? room : most;
        for (int r = 0; r < kTileSize && above + r < images->height; ++r) {
          T* to = run.plane(filter) + intptr_t(above + r) * images->width + before;
          const T* from = lines[r];
          int i = 0;
          const auto copy = [&](auto lanes) MB_LAMBDA {
            using U = Vec<T, lanes>;
            for (; i <= columns - U::size; i += U::size) {
              U x = U::load(from + i);
              if (block->line > 0) x = U::load(to + i) + x;
              x.store(to + i);
            }
          };
          copy(Constant<V::size>{});
          if (V::size > 4) copy(Constant<4>{});
          copy(Constant<1>{});
        }
      }
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_WINOGRAD_H_
