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
  template <class W>
  static MB_INLINE void run(const TiledImages<T>* images, const TileBlock* block, int channel, int channels, T* to,
                            intptr_t matrix) {
    using V = typename W::template of<T>;
    constexpr int kRows = Gradient ? kTileSize : kTileLines, kMore = kRows - kTileSize;
    const auto& table = Gradient ? kGradientLines : kInputLines;
    const intptr_t width = images->width;
    T zeros[kRunElements] = {}, line[kRunElements] = {};
    for (const int end = channel + channels; channel < end; ++channel, to += block->pitch) {
      for (typename TiledImages<T>::Run run(*images, block->first); run.next(block->count);) {
        const int above = kTileSize * run.row - images->pad_down, before = kTileSize * run.column - images->pad_across,
                  elements = kTileSize * run.tiles + kMore;
        const int first = before < 0 ? -before : 0;
        int last = width - before < elements ? int(width) - before : elements;
        if (last < first) last = first;
        const T* rows[kRows];
        for (int k = 0; k < kRows; ++k)
          rows[k] = unsigned(above + k) < unsigned(images->height) ? run.plane(channel) + (above + k) * width + before
                                                                   : zeros;
        T* out = to + run.done;
        for (int l = block->line; l < block->line + block->lines; ++l, out += kTileLines * matrix) {
          const TwoRows& two = table[l];
          const T *a = rows[two.first], *b = rows[two.second];
          const V scale = T(two.first_factor), factor = T(two.second_factor);
          const auto add = [&](int i)
                               MB_LAMBDA { muladd(V::load(b + i), factor, V::load(a + i) * scale).store(line + i); };
          int i = first;
          for (; i <= last - V::size; i += V::size) add(i);
          if (i < last && last - first >= V::size) add(last - V::size), i = last;
          for (; i < last; ++i) line[i] = a[i] * T(two.first_factor) + b[i] * T(two.second_factor);
          for (i = 0; i < first; ++i) line[i] = 0;
          for (i = last; i < elements; ++i) line[i] = 0;
          for (int t = 0; t < run.tiles; t += V::size) {
            const T* at = line + kTileSize * t;
            const V low = V::load(at), high = V::load(at + V::size);
            const V even = of_pairs<0>(low, high), odd = of_pairs<1>(low, high);
            T* each = out + t;
            if constexpr (Gradient) {
              const V half = T(.5);
              even.store(each), odd.store(each + 3 * matrix);
              (half * even + half * odd).store(each + matrix), (half * even - half * odd).store(each + 2 * matrix);
            } else {
              const V later_low = V::load(at + 2), later_high = V::load(at + 2 + V::size);
              const V even2 = of_pairs<0>(later_low, later_high), odd2 = of_pairs<1>(later_low, later_high);
              (even - even2).store(each), (odd + even2).store(each + matrix);
              (even2 - odd).store(each + 2 * matrix), (odd - odd2).store(each + 3 * matrix);
            }
          }
        }
      }
    }
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
    T lines[kTileSize][kRunElements];
    for (const int end = filter + filters; filter < end; ++filter, x += block->pitch) {
      const V start = bias && block->line == 0 ? bias[filter] : T(0);
      for (typename TiledImages<T>::Run run(*images, block->first); run.next(block->count);) {
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
          if (block->line > 0) {
            for (; i <= columns - V::size; i += V::size) (V::load(to + i) + V::load(from + i)).store(to + i);
            for (; i < columns; ++i) to[i] += from[i];
          } else {
            for (; i <= columns - V::size; i += V::size) V::load(from + i).store(to + i);
            for (; i < columns; ++i) to[i] = from[i];
          }
        }
      }
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_WINOGRAD_H_
