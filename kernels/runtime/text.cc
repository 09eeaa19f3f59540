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

void ErrorText::write(const char* format, const intptr_t* parts) const {
  char* at = text;
  char* last = text + room - 1;
  if (room == 0) return;
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
}

}  // namespace minbuild
