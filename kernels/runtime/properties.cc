// Optional part "properties": numbers and texts that users keep with the model, in room of the session's own. They travel
// in checkpoints, and so does the learning rate as one of them.
#include "minbuild/config.h"

#if MB_PROPERTIES
#include "minbuild/checkpoint.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// Followed by the name, its NUL, the text, its NUL, and whatever fills up to a multiple of 8.
struct Property {
  uint32_t size;  // of all that
  int32_t type;
  int64_t number;  // a float has the first bytes
};
static_assert(sizeof(Property) == 16, "names follow");

constexpr char kLearningRate[] = "minbuild.learning_rate";

Property* property_at(Session* s, uint32_t at) { return reinterpret_cast<Property*>(s->bag + at); }
char* name_of(Property* property) { return reinterpret_cast<char*>(property + 1); }
Vector text(const char* from) { return {reinterpret_cast<const uint8_t*>(from), length_of(from)}; }
uint64_t size_of(Vector name, Vector value) {
  return (sizeof(Property) + uint64_t{name.count} + value.count + 2 + 7) & ~uint64_t{7};
}

// Where the property is, the end of all where there is none.
uint32_t find_property(Session* s, Vector name) {
  uint32_t at = 0;
  while (at < s->bag_size && !name.equals(name_of(property_at(s, at)))) at += property_at(s, at)->size;
  return at;
}

// Adds a property; one of that name goes. No type only removes, and has no value. Whether there was room.
MB_NOINLINE bool put_property(Session* s, int32_t type, int64_t number, Vector name, Vector value) {
  const uint32_t at = find_property(s, name), old = at < s->bag_size ? property_at(s, at)->size : 0;
  const uint64_t size = type == 0 ? 0 : size_of(name, value);
  if (s->bag_size - old + size > sizeof s->bag) return false;
  // Made aside: name and text may be those that mb_get_property found, in the room that moves up.
  Property* property = static_cast<Property*>(__builtin_alloca(sizeof(Property) + static_cast<size_t>(size)));
  clear_bytes(property, static_cast<size_t>(size));
  *property = {static_cast<uint32_t>(size), type, number};
  if (type != 0 && name.count > 0) copy_bytes(name_of(property), name.data, name.count);
  // Behind the name as it reads, should there be a NUL in it.
  if (value.count > 0) copy_bytes(name_of(property) + length_of(name_of(property)) + 1, value.data, value.count);
  s->bag_size -= old;
  for (uint32_t i = at; i < s->bag_size; ++i) {
    s->bag[i] = s->bag[i + old];
    __asm__("" : : : "memory");  // else this becomes a call of memmove, which nothing brings: it would not link
  }
  copy_bytes(s->bag + s->bag_size, property, static_cast<size_t>(size));
  s->bag_size += static_cast<uint32_t>(size);
  return true;
}

int64_t bits_of(float value) {
  int64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

}  // namespace

bool read_properties(Session* s, const Flatbuffer& file, uint32_t root, bool apply) {
  const uint32_t bag = file.child(root, checkpoint::kCheckpoint_properties);
  constexpr int32_t kTypes[] = {MB_INT64, MB_FLOAT, MB_STRING};
  uint64_t needed = 0;
  if (apply) s->bag_size = 0;
  for (uint32_t kind = 0; kind < 3; ++kind) {
    Vector list = file.vector(bag, checkpoint::kProperties_ints + 2 * kind, 4);
    for (uint32_t at = static_cast<uint32_t>(list.data - file.data); list.count > 0; --list.count, at += 4) {
      const uint32_t entry = file.follow(at);
      Vector name = file.vector(entry, checkpoint::kInt_name, 1), value = {};
      if (kind == 2) value = file.vector(entry, checkpoint::kInt_value, 1);
      needed += size_of(name, value);
      const uint64_t number = kind == 2 ? 0 : file.scalar(entry, checkpoint::kInt_value, kind == 0 ? 8 : 4);
      if (apply) put_property(s, kTypes[kind], static_cast<int64_t>(number), name, value);
    }
  }
  mb_property rate;
  for (uint32_t i = 0; apply && mb_get_property(s, i, &rate) == MB_OK; ++i)
    if (rate.type == MB_FLOAT && text(kLearningRate).equals(rate.name)) s->progress->learning_rate = rate.real;
  return needed <= sizeof s->bag;
}

bool keep_learning_rate(Session* s) {
  return put_property(s, MB_FLOAT, bits_of(s->progress->learning_rate), text(kLearningRate), {});
}

}  // namespace minbuild

using namespace minbuild;

extern "C" {

mb_status mb_get_property(const mb_session* session, size_t index, mb_property* found) {
  Session* s = static_cast<Session*>(const_cast<mb_session*>(session));
  uint32_t at = 0;
  while (at < s->bag_size && index-- > 0) at += property_at(s, at)->size;
  if (at >= s->bag_size) return MB_INVALID_ARGUMENT;
  Property* property = property_at(s, at);
  found->type = property->type;
  found->integer = property->number;
  __builtin_memcpy(&found->real, &property->number, sizeof found->real);
  found->name = name_of(property);
  found->text = found->name + length_of(found->name) + 1;
  return MB_OK;
}

mb_status mb_set_property(mb_session* session, const mb_property* property) {
  Session* s = static_cast<Session*>(session);
  const int32_t type = property->type;
  if (type != 0 && type != MB_INT64 && type != MB_FLOAT && type != MB_STRING) return fail(s, Failure::kPropertyType);
  const int64_t number = type == MB_INT64 ? property->integer : type == MB_FLOAT ? bits_of(property->real) : 0;
  if (put_property(s, type, number, text(property->name), text(type == MB_STRING ? property->text : ""))) return MB_OK;
  return fail(s, Failure::kPropertyRoom, sizeof s->bag);
}

}  // extern "C"
#endif
