// Reads a plan in place, computes what depends on the sizes of the free dimensions, and finds tensors. Every number of
// the plan that could lead to what is not there is checked where it is used.
#include "runtime/expressions.h"

namespace minbuild {
#if MB_SHARED_NAMES
constexpr uint32_t kMostNameBytes = 1 << 24;
#endif

const void* Session::at(uint32_t index, plan::VectorIndex vector) const {
  if (index < count[vector]) return data[vector] + index * size_t{plan::kStrides[vector]};
  damaged = true;
  return start;
}

#if MB_DENSE
uint32_t Session::read() const {
  for (uint32_t number = 0; next < stream_bytes;) {
    const uint32_t byte = stream[next++];
    number = number << 7 | (byte & 127);
    if (byte < 128) return number;
  }
  damaged = true;
  return ~uint32_t{0};
}

#if MB_SHARED_NAMES
void Session::expand_names(char* to) {
  const char *text = data[plan::kNames], *last = text + count[plan::kNames] - 1;  // a NUL
  uint32_t at = 0, before = 0;  // bytes of all so far, and of the one before without its NUL
  for (uint32_t n = count[plan::kParameters]; n != 0; --n) {
    uint32_t shared = 0;
    if (text < last) shared = static_cast<uint8_t>(*text++);
    // One more than the bytes that it has from the one before it.
    if (--shared > before || at > kMostNameBytes) {
      damaged = true;
      break;
    }
    const uint32_t length = length_of(text);
    if (to != nullptr) {
      copy_bytes(to + at, to + at - before - (at != 0), shared);
      copy_bytes(to + at + shared, text, length + 1);
    }
    text += length + 1;
    before = shared + length;
    at += before + 1;
  }
  other_names = text;
  name_bytes = at;
}
#endif

const char* Session::name(uint32_t i) const {
  const char *text = data[plan::kNames], *last = text + count[plan::kNames] - 1;  // a NUL
#if MB_SHARED_NAMES
  text = other_names;
  if (i < count[plan::kParameters])
    text = reinterpret_cast<const char*>(values + value_count()), last = text + name_bytes;
  else i -= count[plan::kParameters];
#endif
  for (; i != 0 && text < last; --i) text += length_of(text) + 1;
  return text < last ? text : last;
}
#endif

bool Session::read_plan(const void* bytes, size_t size) {
  start = static_cast<const char*>(bytes);
  // Of plans with loops, those that the library was made for.
  constexpr uint32_t kLoops = (MB_LOOPS ? plan::kLoopVersion : 0) | (MB_LOOPS > 1 ? plan::kBackwardLoopVersion : 0) |
                              (MB_LOOPS > 2 ? plan::kControlledLoopVersion : 0) |
                              (MB_LOOPS > 3 ? plan::kLongLoopVersion : 0);
  constexpr uint32_t kTaken = kLoops | (MB_IDLE_MOMENTS ? plan::kIdleMomentsVersion : 0);
#if MB_DENSE
  // A multiple of 8 bytes, and not none: the head is there, and vectors that are aligned at the end are aligned.
  if (((reinterpret_cast<uintptr_t>(bytes) | size) & 7) != 0 || size - 1 >= 0x7fffffff) return false;
  const uint32_t* head = static_cast<const uint32_t*>(bytes);
  uint32_t identifier;
  __builtin_memcpy(&identifier, plan::kIdentifier, sizeof identifier);
  stream = static_cast<const uint8_t*>(bytes);
  stream_bytes = static_cast<uint32_t>(size);
  next = 2 * sizeof *head;
  // The numbers of elements and the scalars follow one another in the file as they do here.
  for (uint32_t* number = count; number <= &draw_bytes; ++number) *number = read();
  stream += next;
  uint32_t rest = stream_bytes -= next;
  for (uint32_t i = 0; i < plan::kVectors; ++i) {
    const uint64_t length = uint64_t{count[i]} * plan::kStrides[i];
    if (length > rest) return false;
    rest -= static_cast<uint32_t>(length);
    data[i] = reinterpret_cast<const char*>(stream) + rest;
  }
  const uint32_t version = head[0];
  bool good = !damaged && (version & ~kTaken) == plan::kVersion && head[1] == identifier;
#else
  Flatbuffer file = {static_cast<const uint8_t*>(bytes), static_cast<uint32_t>(size)};
  bool good = reinterpret_cast<uintptr_t>(bytes) % 8 == 0 && size < 0x80000000;
  uint32_t root = file.root(plan::kIdentifier);
  const uint64_t version = file.scalar(root, plan::kTrainer_version, 4);
  good &= (version & ~uint64_t{kTaken}) == plan::kVersion;
  // Scalars and vectors follow one another in the schema as they do here.
  Bytes* number = &trainable_bytes;
  constexpr uint32_t kLast = MB_CHECKSUMS  ? plan::kTrainer_fingerprint + 2 * MB_DRAWS
                             : MB_ROLLBACK ? plan::kTrainer_rollback_bytes
                                           : plan::kTrainer_arena;
  for (uint32_t slot = plan::kTrainer_trainable_bytes; slot <= kLast; slot += 2)
    *number++ = static_cast<Bytes>(file.scalar(root, slot, sizeof(Bytes)));
  for (uint32_t i = 0; i < plan::kVectors; ++i) {
    Vector vector = file.vector(root, plan::kTrainer_names + 2 * i, plan::kStrides[i]);
    data[i] = reinterpret_cast<const char*>(vector.data);
    count[i] = vector.count;
    good &= vector.data != nullptr;
  }
#if MB_WIDE
  good &= reinterpret_cast<uintptr_t>(data[plan::kExprs]) % alignof(plan::Expr) == 0;  // numbers of 8 bytes
#endif
#endif
#if MB_IDLE_MOMENTS > 1
  stored_moments = (version & plan::kIdleMomentsVersion) != 0 ? 0 : count[plan::kMoments];
#endif
#if MB_DENSE || MB_ROLLBACK || MB_CHECKSUMS
  const Bytes least = rollback_bytes;
#else
  constexpr Bytes least = sizeof(mb_progress);
#endif
#if MB_DENSE
  good &= uint64_t{count[plan::kDefaults]} + constant_count <= expr_count;
  good &= uint64_t{count[plan::kParameters]} + count[plan::kPorts] <= count[plan::kTensors];
#endif
  good = good && count[plan::kNames] > 0 && data[plan::kNames][count[plan::kNames] - 1] == 0 &&
         count[plan::kDefaults] <= kMostSymbols && value_count() <= kMostExprs && arena < value_count() &&
         (MB_FROZEN_PARAMETERS ? trained <= count[plan::kParameters] : trained == count[plan::kParameters]) &&
         count[plan::kMoments] < 8 &&
         (MB_WIDE == 0 || (trainable_bytes < kMostPersistent && least < kMostPersistent)) &&
         trainable_bytes * (kFirstMoment + uint64_t{minbuild::stored_moments(this)}) + least <= persistent_bytes &&
         least >= sizeof(mb_progress) + draw_bytes && persistent_bytes < kMostPersistent &&
         (MB_ROLLBACK == 0 || sizeof(void*) > 4 || least < kMostPersistent - persistent_bytes);
#if MB_SHARED_NAMES
  if (good) expand_names(nullptr);
  good &= !damaged;
#endif
  return good;
}

namespace {

// The value of expression i, from those before it; kNoValue where an operation overflows or is not defined.
int64_t compute(const plan::Expr& e, uint32_t i, const int32_t* symbols, const Size* values) {
  uint32_t left = static_cast<uint32_t>(e.a);
  if (e.op == plan::kExprConstant) return e.a;
#if MB_SYMBOLS
  if (e.op == plan::kExprSymbol) return left < kMostSymbols && symbols[left] > 0 ? symbols[left] : kNoValue;
  if (left >= i || e.b >= i) return kNoValue;
  int64_t a = values[left], b = values[e.b];
  return operate(e.op, a, b);
#endif
  return kNoValue;
}

}  // namespace

Size Session::evaluate() {
#if MB_DENSE
  next = 0;
  uint32_t i = 0, constant = 0;  // each is so much above the one before
#if MB_SYMBOLS
  for (; i < count[plan::kDefaults]; ++i)
    if ((values[i] = symbols[i]) <= 0) return -1;
#endif
  for (uint32_t n = constant_count; n != 0; --n) values[i++] = static_cast<Size>(constant += read());
  for (; i < value_count(); ++i) {
    const uint32_t first = read();
    const plan::Expr e = {static_cast<int32_t>(i - 1 - (first >> 3)), read(),
                          static_cast<uint16_t>(plan::kExprAdd + (first & 7))};
#else
  for (uint32_t i = 0; i < value_count(); ++i) {
    const plan::Expr& e = expr(i);
#endif
    int64_t value = compute(e, i, symbols, values);
    if (!is_value(value)) return -1;
    values[i] = static_cast<Size>(value);
  }
  return values[arena];
}

#if MB_DENSE
plan::Tensor Session::resolve(uint32_t index, Tensor* tensor) const {
  const plan::Record& record = *static_cast<const plan::Record*>(at(index, plan::kTensors));
  struct {
    uint32_t at, type, region, shape, walks;
  } t;
  t.at = record.at;
  t.shape = record.shape;
  const Index* dims = static_cast<const Index*>(at(t.shape, plan::kShapes));
#if MB_DENSE > 1
  const uint32_t head = *static_cast<const uint16_t*>(at(*dims, plan::kHeads));
#else
  const uint32_t head = *dims;
#endif
  // From the lowest bit: type, 2 where it goes back in rounds, 1 where it goes on, region, rank.
  t.type = head & 31;
  t.walks = (head >> 5 & 2) | (head >> 7 & 1);
  t.region = head >> 8 & 7;
  const uint32_t rank = head >> 11;
  // Bound values start at the first constant, which is 0.
  if (t.region == kBound) t.region += t.at, t.at = count[plan::kDefaults];
#else
const plan::Tensor& Session::resolve(uint32_t index, Tensor* tensor) const {
  const plan::Tensor& t = *static_cast<const plan::Tensor*>(at(index, plan::kTensors));
  const Index* dims = shape(t);
  const uint32_t rank = *dims;
#endif
  const uint32_t exprs = value_count();
  at(t.shape + rank, plan::kShapes);
  tensor->data = nullptr;
  tensor->count = tensor->rank = 0;
  bool good = rank <= MB_MAX_RANK && t.at < exprs && t.region < region_count;
  if (good) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      uint32_t expr = *++dims;
      Bytes dim = expr < exprs ? static_cast<Bytes>(values[expr]) : ~Bytes{0};
      tensor->dims[i] = static_cast<int32_t>(dim);
      elements *= dim;
      good &= (elements | dim) < 0x7fffffff;
    }
    tensor->rank = static_cast<int32_t>(rank);
    tensor->count = static_cast<int32_t>(elements);
    const Span& span = regions[t.region];
    Bytes at = static_cast<Bytes>(values[t.at]), size = element_size(t.type);
#if MB_LOOPS
    if (t.walks != 0) {
      Bytes round = static_cast<Bytes>(sample);
#if MB_LOOPS > 1
      if (t.walks > 1) round = static_cast<Bytes>(last_sample - sample);
#endif
      at += round * (elements * size);
    }
#endif
    good &= (MB_WIDE == 0 || at <= span.size) && at + elements * size <= span.size && (at & (size - 1)) == 0;
    if (good && span.data != nullptr) tensor->data = span.data + at;
  }
  damaged |= !good;
#if MB_DENSE
  return {static_cast<uint16_t>(t.type), static_cast<uint16_t>(t.region), t.shape};
#else
  return t;
#endif
}

}  // namespace minbuild
