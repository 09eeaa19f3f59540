// Normalization of rows: layer, instance, group and root-mean-square normalization, and their gradient.
#include "minbuild/kernel.h"
#include "lib/nn/normalized_rows.h"
#include "lib/simd/math.h"

namespace minbuild {

// Elements next to each other. Each has its own entry of scale and bias, or all have the first.
template <class T>
struct Run {
  int length;
  bool each;
  T mean, a, b, c;                 // mean is taken off x
  const T *x, *dy, *scale, *bias;  // dy and bias may be null
  T *y, *d_scale, *d_bias;
  T sum, product;

  template <class V>
  MB_INLINE V entry(const T* p, int i) const {
    return !MB_LAYER_NORMALIZATION_RUNS || each ? V::load(p + i) : V(*p);
  }
};

// Sums of u and of u (x - mean), where u is x - mean, or dy, times scale if each element has its own. Then the gradients
// of scale and bias are gathered on the way.
template <class T>
struct RunSums {
  template <class V>
  static MB_INLINE void step(const Run<T>& r, int i, V& sums, V& products) {
    V x = V::load(r.x + i) - V(r.mean), u = x;
    if (r.dy) {
      u = V::load(r.dy + i);
      if (!MB_LAYER_NORMALIZATION_RUNS || r.each) {
        if (r.d_bias) (V::load(r.d_bias + i) + u).store(r.d_bias + i);
        if (r.d_scale) muladd(u * x, V(r.a), V::load(r.d_scale + i)).store(r.d_scale + i);
        u = u * V::load(r.scale + i);
      }
    }
    sums = sums + u;
    products = muladd(u, x, products);
  }
  template <class W>
  static MB_INLINE void run(Run<T>* run) {
    using V = typename W::template of<T>;
    const Run<T> r = *run;
    V sums = T(0), products = T(0);
    Vec<T, 1> rest = T(0), rest_products = T(0);
    int i = 0;
    for (; i <= r.length - V::size; i += V::size) step(r, i, sums, products);
    for (; i < r.length; ++i) step(r, i, rest, rest_products);
    run->sum = sum(sums) + sum(rest);
    run->product = sum(products) + sum(rest_products);
  }
};

// y = a (x - mean) scale + bias, or a dy scale + b (x - mean) + c. y may be x or dy.
template <class T>
struct RunWrite {
  template <class V>
  static MB_INLINE void step(const Run<T>& r, int i) {
    V x = V::load(r.x + i) - V(r.mean), scale = r.template entry<V>(r.scale, i), a = r.a, y;
    if (r.dy) {
      y = muladd(V::load(r.dy + i) * scale, a, muladd(x, V(r.b), V(r.c)));
    } else {
      y = x * a * scale;
      if (r.bias) y = y + r.template entry<V>(r.bias, i);
    }
    y.store(r.y + i);
  }
  template <class W>
  static MB_INLINE void run(const Run<T>* run) {
    using V = typename W::template of<T>;
    const Run<T> r = *run;
    int i = 0;
    for (; i <= r.length - V::size; i += V::size) step<V>(r, i);
    for (; i < r.length; ++i) step<Vec<T, 1>>(r, i);
  }
};

// Rows [R,N,M] of N runs of M elements. In a layer, where N is 1, every element of a row has its own entry of scale and
// bias, the same in all rows. Else each run has one, and behind the last entry follows the first.
template <class T>
struct Rows {
  int count, length, run, entries;
  bool each;

  bool read(const Tensor& rows, const Tensor& x, const Tensor& scale, int own_entries) {
    if (rows.rank != 3 || rows.count != x.count) return false;
    count = rows.dims[0], run = rows.dims[2], entries = scale.count;
    length = x.count == 0 ? 0 : rows.dims[1] * run;
    each = !MB_LAYER_NORMALIZATION_RUNS || own_entries != 0;
    return x.count == 0 || (each ? run == length && entries == length : entries > 0);
  }
  // Absent, or one number per row.
  bool fits(const Tensor& statistics) const { return !statistics || statistics.count == count; }
  // Where the entries of the run that begins with element `at` are.
  MB_INLINE T* entry(T* first, int at) const { return first && !each ? first + at / run % entries : first; }
};

#if MB_THREADS > 1
// A kernel on parts of the rows, its last of `Arguments` tensors: `whole` are those with all elements, `narrow` those with
// one of each row.
template <class T, int Arguments>
struct PartOfRows {
  const Call& call;
  const Rows<T>& rows;
  Status (*kernel)(const Call&);
  uint32_t whole, narrow, absent = 0;

  void run_all() const {
    const int64_t bytes = int64_t(rows.count) * rows.length * int64_t(sizeof(T));
    for_ranges(call.team, rows.count, bytes, kTogether, [&](intptr_t first, intptr_t count) {
      Tensor own[Arguments];
      for (int i = 0; i < Arguments; ++i) {
        own[i] = call[i];
        if (absent >> i & 1) own[i].data = nullptr;
        const int each = whole >> i & 1 ? rows.length : narrow >> i & 1;
        if (!own[i] || each == 0) continue;
        own[i].data += first * each * intptr_t(sizeof(T));
        own[i].count = int(count) * each;
      }
      own[Arguments - 1].dims[0] = int(count), own[Arguments - 1].count = int(count) * rows.length;
      Call one = call;
      one.middle = own + Call::kMiddle, one.team = nullptr;
      kernel(one);
    });
  }
};
#endif

// x, y: [R,L]  scale, bias: entries  mean, inv_std: [R]. `simple`: the mean is taken to be 0.
template <class T>
Status layer_norm(const Call& call) {
  const Tensor &y = call[0], &x = call[3], &scale = call[4], &bias = call[5];
  Rows<T> rows;
  if (!rows.read(call[6], x, scale, call.params[2]) || (y && y.count != x.count) || !rows.fits(call[1]) ||
      !rows.fits(call[2]) || (bias && bias.count != scale.count))
    return Status::kBadPlan;
#if MB_THREADS > 1
  if (members_of(call.team) > 1 && rows.each && int64_t(x.count) * int64_t(sizeof(T)) >= 2 * kLeastBytes) {
    const PartOfRows<T, 7> part = {call, rows, layer_norm<T>, 1u << 0 | 1u << 3, 1u << 1 | 1u << 2};
    part.run_all();
    return Status::kOk;
  }
#endif
  const bool simple = MB_LAYER_NORMALIZATION_SIMPLE && call.params[1] != 0;
  const T size = static_cast<T>(rows.length);
  Run<T> r = {};
  int row = 0;
#if MB_LAYER_NORMALIZATION_TOGETHER
  if (rows.each && x.count > 0) {
    const NormalizedRows<T> all = {
        y.as<T>(),    call[1].as<T>(), call[2].as<T>(), x.as<T>(), scale.as<T>(),
        bias.as<T>(), rows.count,      rows.length,     simple,    static_cast<T>(call.real(0))};
    row = dispatch<NormalizedRows<T>>(&all);
  }
#endif
  for (int at = row * rows.length; at < x.count; ++row) {
    r.mean = 0, r.length = rows.length, r.x = x.as<T>() + at;
    if (!simple) {
      dispatch<RunSums<T>>(&r);
      r.mean = r.sum / size;
    }
    dispatch<RunSums<T>>(&r);
    (Vec<T, 1>(T(1)) / sqrt(Vec<T, 1>(r.product / size + static_cast<T>(call.real(0))))).store(&r.a);
    if (call[1]) call[1].as<T>()[row] = r.mean;
    if (call[2]) call[2].as<T>()[row] = r.a;
    r.length = rows.run, r.each = rows.each;
    for (int end = at + rows.length; at < end; at += rows.run) {
      if (!y) continue;
      r.x = x.as<T>() + at, r.y = y.as<T>() + at;
      r.scale = rows.entry(scale.as<T>(), at), r.bias = rows.entry(bias.as<T>(), at);
      dispatch<RunWrite<T>>(&r);
    }
  }
  return Status::kOk;
}

#if MB_THREADS > 1
template <class T>
Status layer_norm_grad(const Call& call);

// Sums of entries go by columns and read all rows from other threads' caches, and rows are read again for x: both together
// take nearly three times what one thread takes for both at once, at any size, so that fewer threads do not gain.
constexpr int32_t kLeastMembers = 4;

// d_bias += dy and d_scale += dy (x - mean) inverse for some entries, over all rows in their order: as RunSums does.
template <class T>
struct EntrySums {
  T *d_scale, *d_bias;  // one may be null
  const T *dy, *x, *mean, *inverse;
  int rows, length, first, end;

  template <class V, int kCount>
  MB_INLINE void add(int at) const {
    V scale[kCount], bias[kCount];
    unroll<kCount>([&](auto i) MB_LAMBDA {
      scale[i] = d_scale ? V::load(d_scale + at + i * V::size) : V(T(0));
      bias[i] = d_bias ? V::load(d_bias + at + i * V::size) : V(T(0));
    });
    for (intptr_t row = 0, place = at; row < rows; ++row, place += length)
      unroll<kCount>([&](auto i) MB_LAMBDA {
        const V u = V::load(dy + place + i * V::size);
        const V from_x = V::load(x + place + i * V::size) - V(mean ? mean[row] : T(0));
        bias[i] = bias[i] + u;
        scale[i] = muladd(u * from_x, V(inverse[row]), scale[i]);
      });
    unroll<kCount>([&](auto i) MB_LAMBDA {
      if (d_scale) scale[i].store(d_scale + at + i * V::size);
      if (d_bias) bias[i].store(d_bias + at + i * V::size);
    });
  }
  template <class W>
  static MB_INLINE void run(const EntrySums* of) {
    using V = typename W::template of<T>;
    constexpr int kColumns = 4;
    const EntrySums sums = *of;
    int at = sums.first;
    for (; at <= sums.end - kColumns * V::size; at += kColumns * V::size) sums.template add<V, kColumns>(at);
    for (; at <= sums.end - V::size; at += V::size) sums.template add<V, 1>(at);
    for (; at < sums.end; ++at) sums.template add<Vec<T, 1>, 1>(at);
  }
};

// The gradients where each element of a row has its own entry: those of the entries, each of which is the sum over all
// rows in their order; then those of x row by row, which may overwrite dy or x.
template <class T>
MB_NOINLINE void gradients_in_parts(const Call& call, const Rows<T>& rows) {
  const int64_t bytes = int64_t(rows.count) * rows.length * int64_t(sizeof(T));
  constexpr int kWhole = 64 / sizeof(T);  // vectors begin where they do in a whole row
  if (call[1] || call[2])
    for_ranges(call.team, rows.length, bytes, kWhole, [&](intptr_t first, intptr_t columns) {
      EntrySums<T> sums = {call[1].as<T>(), call[2].as<T>(), call[3].as<T>(), call[4].as<T>(), call[6].as<T>(),
                           call[7].as<T>(), rows.count,      rows.length,     int(first),      int(first + columns)};
      dispatch_or_single<EntrySums<T>, T>(&sums);
    });
  if (call[0]) {
    const uint32_t whole = 1u << 0 | 1u << 3 | 1u << 4, narrow = 1u << 6 | 1u << 7, entries = 1u << 1 | 1u << 2;
    const PartOfRows<T, 9> part = {call, rows, layer_norm_grad<T>, whole, narrow, entries};
    part.run_all();
  }
}
#endif

// dx, dy, x: [R,L]  d_scale, d_bias, scale: entries  mean (absent: 0, and a constant), inv_std: [R]. With g = dy scale and
// x' = (x - mean) inv_std: d_bias = sum dy;  d_scale = sum dy x';  dx = inv_std (g - sum g / L - x' sum (g x') / L)
template <class T>
Status layer_norm_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[3], &x = call[4], &scale = call[5], &mean = call[6], &inverse = call[7];
  Rows<T> rows;
  if (!rows.read(call[8], x, scale, call.params[0]) || dy.count != x.count || (dx && dx.count != x.count) ||
      !rows.fits(mean) || inverse.count != rows.count)
    return Status::kBadPlan;
  for (int i = 1; i < 3; ++i) {
    if (!call[i]) continue;
    if (call[i].count != scale.count) return Status::kBadPlan;
    if (!call.adds(i)) clear_bytes(call[i].data, scale.count * sizeof(T));
  }
#if MB_THREADS > 1
  if (members_of(call.team) >= kLeastMembers && rows.each && int64_t(x.count) * int64_t(sizeof(T)) >= 2 * kLeastBytes) {
    gradients_in_parts(call, rows);
    return Status::kOk;
  }
#endif
  const T size = static_cast<T>(rows.length);
  Run<T> r = {};
  r.length = rows.run, r.each = rows.each;
  for (int row = 0, at = 0; at < x.count; ++row) {
    const int first = at, end = at + rows.length;
    const T inv_std = inverse.as<T>()[row];
    T sum = 0, product = 0;
    r.mean = mean ? mean.as<T>()[row] : T(0);
    auto runs = [&](auto work) MB_LAMBDA {
      for (at = first; at < end; at += rows.run) {
        r.x = x.as<T>() + at, r.dy = dy.as<T>() + at, r.scale = rows.entry(scale.as<T>(), at);
        work();
      }
    };
    r.a = inv_std;
    runs([&]() MB_LAMBDA {
      r.d_scale = rows.entry(call[1].as<T>(), at), r.d_bias = rows.entry(call[2].as<T>(), at);
      dispatch<RunSums<T>>(&r);
      const T factor = rows.each ? T(1) : *r.scale;
      sum += factor * r.sum, product += factor * r.product;
      if (!rows.each && r.d_scale) *r.d_scale += r.product * inv_std;
      if (!rows.each && r.d_bias) *r.d_bias += r.sum;
    });
    r.b = -inv_std * inv_std * inv_std * product / size;
    r.c = mean ? -inv_std * sum / size : T(0);
    if (!dx) continue;
    runs([&]() MB_LAMBDA {
      r.y = dx.as<T>() + at;
      dispatch<RunWrite<T>>(&r);
    });
  }
  return Status::kOk;
}

MB_INSTANTIATE_LAYER_NORMALIZATION

}  // namespace minbuild
