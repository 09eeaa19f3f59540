// Error texts without printf, and comparing bytes.
#include "runtime/session.h"

namespace minbuild {

uint32_t length_of(const char* text) {
  uint32_t length = 0;
  while (text[length] != 0) ++length;
  return length;
}

bool equal_bytes(const void* a, const void* b, uint32_t size) {
  const char *left = static_cast<const char*>(a), *right = static_cast<const char*>(b);
  for (; size > 0; --size)
    if (*left++ != *right++) return false;
  return true;
}

mb_status ErrorText::fail(mb_status status, const char* format, intptr_t a, intptr_t b, intptr_t c) const {
  const intptr_t list[] = {a, b, c};
  const intptr_t* parts = list;
  if (room == 0) return status;
  char* at = text;
  char* last = text + room - 1;
  for (; *format != 0; ++format) {
    char digits[21];
    const char* piece = format;
    uint32_t length = 1;
    if (*format == '%' && *++format == 's') {
      piece = reinterpret_cast<const char*>(*parts++);
      length = length_of(piece);
    } else if (piece != format) {
      uintptr_t rest = static_cast<uintptr_t>(*parts++);
      char* first = digits + sizeof digits;
      do *--first = static_cast<char>('0' + rest % 10);
      while ((rest /= 10) != 0);
      piece = first;
      length = static_cast<uint32_t>(digits + sizeof digits - first);
    }
    for (; length > 0 && at != last; --length) *at++ = *piece++;
  }
  *at = 0;
  return status;
}

}  // namespace minbuild
