// Reads an ORT training checkpoint (flatbuffer "ODTC", version 2), or a compact one. Everything is checked before anything
// is changed.
//
// A compact checkpoint has the parameters of one plan without names and shapes, for flash that is only read:
//
//     0    0, and "MBCP", 4 bytes each
//     8    trained parameters as they lie in memory, then the data of each other one in the order of the plan, filled up
//          to a multiple of 8 bytes
//     end  the sums of all bytes before them, as in checksum.h
//
// It may have any size where plans are wide; other checkpoints end at 2 GB.
#include "minbuild/checkpoint.h"
#include "runtime/checksum.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// True if parameters may be bound to the checkpoint: frozen ones may.
#if MB_COMPILED
constexpr bool kBinds = plan::kBinds;
#else
constexpr bool kBinds = MB_FROZEN_PARAMETERS;
#endif

struct Reader {
  Session* s;
  Flatbuffer file;
  bool apply;              // else it only looks whether all is there
  uint32_t module, group;  // where they are in the file
  // What take() is after, and where it binds that, null to copy it: here, as arguments go through memory, too.
  Tensor expected;
  uint32_t type;
  Span* bound;

  // The table in the list at field `slot` of `table` whose first field, a string, is `name`.
  MB_NOINLINE uint32_t find(uint32_t table, uint32_t slot, const char* name) const {
    Vector list = file.vector(table, slot, 4);
    for (uint32_t at = static_cast<uint32_t>(list.data - file.data); list.count > 0; --list.count, at += 4) {
      uint32_t entry = file.follow(at);
      if (file.vector(entry, checkpoint::kTensor_name, 1).equals(name)) return entry;
    }
    return kNowhere;
  }

  // Takes the data of the tensor `name` in such a list, if it has the type and shape of `expected`: copies it there, or makes
  // it the data of `bound`.
  MB_NOINLINE bool take(uint32_t table, uint32_t slot, const char* name) const {
    uint32_t entry = find(table, slot, name);
    Bytes length = bytes_of(expected, type);
    Vector dims = file.vector(entry, checkpoint::kTensor_dims, 8),
           found = file.vector(entry, checkpoint::kTensor_data, 1);
    if (found.data == nullptr || found.count != length || dims.count != static_cast<uint32_t>(expected.rank) ||
        file.scalar(entry, checkpoint::kTensor_element, 4) != type)
      return false;
    for (uint32_t i = 0; i < dims.count; ++i) {
      int64_t dim;
      __builtin_memcpy(&dim, dims.data + 8 * i, sizeof dim);
      if (dim != expected.dims[i]) return false;
    }
    if (apply) put(found.data, length);
    return true;
  }

  // Finds what take() is after for a parameter. What is trained lies in memory with its gradient and moments, other
  // parameters among what persists, or they are bound to the checkpoint. Those may be nowhere yet, and are as large as
  // their shape says.
  MB_INLINE bool find_place([[maybe_unused]] uint32_t i, const plan::Parameter& parameter) {
    const plan::Tensor& t = s->resolve(parameter.tensor, &expected);
    type = t.type;
    bound = nullptr;
#if MB_COMPILED
    if (kBinds && t.region > kNothing) bound = &s->regions[t.region];
#else
    const bool trained = is_trained(s, i);
    if (trained ? t.region != kTrained : t.region != kPersistent) {
      if (trained || t.region != s->bound(i)) return false;
      bound = &s->regions[t.region];
    } else if (expected.data == nullptr) {
      return false;
    }
#endif
    return true;
  }

  // Puts the data of a parameter where find_place() found that it goes.
  MB_INLINE void put(const uint8_t* data, Bytes length) const {
    if (!kBinds || bound == nullptr) {
      copy_bytes(expected.data, data, length);
    } else {
      *bound = {reinterpret_cast<char*>(const_cast<uint8_t*>(data)), length};
      s->keeps_checkpoint = true;
    }
  }

  // A parameter and, where `group` has it, its moments.
  MB_NOINLINE bool read(uint32_t i) {
    const plan::Parameter& parameter = s->parameter(i);
    const char* name = s->name(parameter.name);
    if (!find_place(i, parameter)) return false;
    const bool trained = is_trained(s, i);
    if (file.data == nullptr) return !kBinds || bound == nullptr || bound->data != nullptr;
    if (!take(module, trained ? checkpoint::kModule_trainable : checkpoint::kModule_frozen, name) &&
        (!MB_READS_TRAINABLE || trained || !take(module, checkpoint::kModule_trainable, name)))
      return false;
    // Those that are not stored are passed over, whatever is there.
    if (!trained || group == kNowhere || (MB_IDLE_MOMENTS && stored_moments(s) == 0)) return true;
    // Moments lie behind the gradients, in the same layout.
    uint32_t state = find(group, checkpoint::kGroup_states, name);
    if (kFirstMoment == 2) expected.data += s->trainable_bytes;
    for (uint32_t k = 0; k < s->count[plan::kMoments]; ++k) {
      expected.data += s->trainable_bytes;
      if (!take(state, checkpoint::kState_moments, s->moment(k))) return false;
    }
    return true;
  }
};
static_assert(checkpoint::kTensor_name == checkpoint::kState_parameter &&
                  checkpoint::kTensor_name == checkpoint::kGroup_name,
              "what find() looks at");

#if MB_COMPACT
constexpr char kCompact[] = "MBCP";
constexpr uint32_t kCompactHead = 8;

// Reads a compact checkpoint. First it only looks whether all is there, which for a plan that is compiled in the size of
// the file says.
MB_INLINE mb_status read_compact(Reader& reader, uintptr_t bytes, size_t size) {
  Session* s = reader.s;
  const uint8_t* data = reader.file.data;
  const Bytes end = static_cast<Bytes>(size - sizeof(Sums));
#if MB_COMPILED
  const bool good = end == plan::kCompactEnd && size < 0x80000000;
#else
  const bool good =
      size >= kCompactHead + sizeof(Sums) && (MB_WIDE || size < 0x80000000) && s->trainable_bytes <= end - kCompactHead;
#endif
  if (!good || bytes % 4 != 0) return fail(s, Failure::kCheckpoint, checkpoint::kVersion);
#if MB_CHECKSUMS
  Sums sums = {0, static_cast<uint32_t>(s->fingerprint)}, said;
#if MB_WIDE
  const uint8_t* sealed = sums.add_all(data, end);
#else
  const uint8_t* sealed = sums.add(data, end);
#endif
  __builtin_memcpy(&said, sealed, sizeof said);
  if (said.simple != sums.simple) return fail(s, Failure::kCheckpoint, checkpoint::kVersion);
#if MB_FINGERPRINT
  if (said.ordered != sums.ordered && s->accepts_any_checkpoint == 0) return fail(s, Failure::kModel);
#endif
#endif
  for (bool apply = MB_COMPILED;; apply = true) {
    if (apply) copy_bytes(s->regions[kTrained].data, data + kCompactHead, s->trainable_bytes);
    Bytes at = kCompactHead + static_cast<Bytes>(s->trainable_bytes);
    for (uint32_t i = s->trained; i < s->count[plan::kParameters]; ++i) {
      const plan::Parameter& parameter = s->parameter(i);
      const bool placed = reader.find_place(i, parameter);
      const Bytes length = bytes_of(reader.expected, reader.type), step = (length + 7) & ~Bytes{7};
      if (!MB_COMPILED && (!placed || step > end - at))
        return fail(s, Failure::kParameter, word_of(s->name(parameter.name)));
      if (apply) reader.put(data + at, length);
      at += step;
    }
    if (apply) return MB_OK;
    if (at != end) return fail(s, Failure::kCheckpoint, checkpoint::kVersion);
  }
}
#endif

}  // namespace

mb_status read_checkpoint(Session* s, const void* bytes, size_t size) {
  // Without a checkpoint an empty one is read, and every frozen parameter must have its data elsewhere.
  Reader reader;
  reader.s = s;
  reader.file = {static_cast<const uint8_t*>(bytes), bytes == nullptr ? 0 : static_cast<uint32_t>(size)};
#if MB_WIDE
  // Of a larger file only the identifier is read.
  if (bytes != nullptr && size > 0x7fffffff) reader.file.size = 0x7fffffff;
#endif
  reader.apply = false;
  const uint32_t root = reader.file.root(checkpoint::kIdentifier);
  reader.module = reader.file.child(root, checkpoint::kCheckpoint_module);
#if MB_COMPACT
  // Both formats have their identifier at the same place.
  if (reader.file.root(kCompact) != kNowhere) {
    const mb_status status = read_compact(reader, reinterpret_cast<uintptr_t>(bytes), size);
#if MB_BUFFERS
    if (status == MB_OK) s->nominal = false;
#endif
    return status;
  }
#endif
  if (bytes != nullptr && (reader.file.scalar(root, checkpoint::kCheckpoint_version, 4) != checkpoint::kVersion ||
                           size > 0x7fffffff || reinterpret_cast<uintptr_t>(bytes) % 4 != 0))
    return fail(s, Failure::kCheckpoint, checkpoint::kVersion);
#if MB_BUFFERS
  // A nominal checkpoint names what a buffer will bring, which must have a place of its own.
  const bool nominal = reader.file.scalar(reader.module, checkpoint::kModule_nominal, 1) != 0;
  Reader places = reader;
  places.file = {nullptr, 0};
  for (uint32_t i = 0; nominal && i < s->count[plan::kParameters]; ++i) {
    const char* name = s->name(s->parameter(i).name);
    const uint32_t list = is_trained(s, i) ? checkpoint::kModule_trainable : checkpoint::kModule_frozen;
    if (reader.find(reader.module, list, name) == kNowhere || !places.read(i))
      return fail(s, Failure::kParameter, word_of(name));
  }
  if (nominal) {
    s->nominal = true;
    return MB_OK;
  }
#endif
#if MB_PROPERTIES
  if (!read_properties(s, reader.file, root, false)) return fail(s, Failure::kPropertyRoom, sizeof s->bag);
#endif
  const uint32_t group = reader.group = reader.find(root, checkpoint::kCheckpoint_groups, "group0");
  for (;; reader.apply = true) {
    for (uint32_t i = 0; i < s->count[plan::kParameters]; ++i)
      if (!reader.read(i)) return fail(s, Failure::kParameter, word_of(s->name(s->parameter(i).name)));
    if (reader.apply) break;
    const uint64_t step = reader.file.scalar(group, checkpoint::kGroup_step, 8);
#if MB_CHECKSUMS
    // No training takes 2^48 steps.
    if (step >> 48 != 0) return fail(s, Failure::kCheckpoint, checkpoint::kVersion);
    if (is_sealed(root)) {
      Sums sums = {0, static_cast<uint32_t>(s->fingerprint)}, said;
      const uint8_t* end = sums.add(reader.file.data, reader.file.size - sizeof sums);
      MB_OPAQUE(end);  // else each address below is worked out again from the file's size
      __builtin_memcpy(&said, end, sizeof said);
      if (said.simple != sums.simple) return fail(s, Failure::kCheckpoint, checkpoint::kVersion);
#if MB_FINGERPRINT
      if (said.ordered != sums.ordered && s->accepts_any_checkpoint == 0) return fail(s, Failure::kModel);
#endif
      // With the counters, training goes on as if it had not stopped. Another plan may have more or fewer.
      const uint32_t draws = static_cast<uint32_t>(s->draw_bytes), length = draws + sizeof(mb_progress);
      if (group != kNowhere &&
          (MB_DRAWS == 0 || reader.file.u32(reader.file.size - sizeof sums - length - 4) == length))
        copy_bytes(reinterpret_cast<char*>(s->progress) - draws, end - length, length);
    }
#endif
    if (group != kNowhere) s->progress->step = static_cast<int64_t>(step);
  }
#if MB_PROPERTIES
  read_properties(s, reader.file, root, true);
#endif
#if MB_BUFFERS
  s->nominal = false;
#endif
  return MB_OK;
}

}  // namespace minbuild
