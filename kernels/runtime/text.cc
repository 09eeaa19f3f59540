// Error texts without printf.
#include "runtime/session.h"

namespace minbuild {
namespace {

// A status and a text for each Failure, in their order.
constexpr char kTexts[] =
    "\2not an intact, aligned plan of version %d\0"
    "\1expected %d symbols\0"
    "\3the library lacks %s\0"
    "\5needs %d bytes aligned to 16, has %d\0"
    "\6the model takes no such sizes\0"
    "\11no such graph\0"
    "\1expected %d inputs\0"
    "\6input %s: expected %d as number %d of type, rank, dimensions\0"
    "\2step %d, %s: shapes do not fit\0"
    "\7step %d, %s: value out of range\0"
    "\4not an intact, aligned ORT checkpoint of version %d\0"
    "\4the checkpoint lacks %s in the model's type and shape\0"
    "\10cannot write\0"
    "\10cannot read %s\0"
    "\10cannot write %s"
#if MB_PROPERTIES
    "\0\1a property is an MB_INT64, MB_FLOAT or MB_STRING"
    "\0\5properties have room for %d bytes"
#endif
#if MB_BUFFERS
    "\0\4the state is nominal: first copy a buffer to all parameters"
    "\0\6%s: only MB_FLOAT goes into a buffer"
    "\0\1the parameters have %d elements"
#endif
#if MB_EXPORT
    "\0\2not an intact mold of this model"
#endif
    ;
static_assert(MB_INVALID_ARGUMENT == 1 && MB_BAD_PLAN == 2 && MB_MISSING_KERNEL == 3 && MB_BAD_CHECKPOINT == 4 &&
                  MB_OUT_OF_MEMORY == 5 && MB_BAD_SHAPE == 6 && MB_BAD_VALUE == 7 && MB_IO == 8 && MB_UNSUPPORTED == 9,
              "as the texts begin");

}  // namespace

uint32_t length_of(const char* text) {
  uint32_t length = 0;
  while (text[length] != 0) ++length;
  return length;
}

mb_status fail(const mb_session* session, Failure failure, intptr_t a, intptr_t b, intptr_t c) {
  const intptr_t parts[] = {a, b, c};
  const intptr_t* part = parts;
  const char* format = kTexts;
  for (uint8_t skip = static_cast<uint8_t>(failure); skip > 0; --skip) format += length_of(format) + 1;
  mb_status status = static_cast<mb_status>(*format++);
  char *text = session->error, *last = text + sizeof(mb_options::error) - 1;
  for (; *format != 0; ++format) {
    char digits[12];
    char* piece = digits + sizeof digits;
    *--piece = 0;
    if (*format != '%') {
      *--piece = *format;
    } else if (*++format == 's') {
      piece = reinterpret_cast<char*>(*part++);
    } else {
      uint32_t rest = static_cast<uint32_t>(*part++);
      do *--piece = static_cast<char>('0' + rest % 10);
      while ((rest /= 10) != 0);
    }
    while (*piece != 0 && text != last) *text++ = *piece++;
  }
  *text = 0;
  return status;
}

}  // namespace minbuild
