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
  const intptr_t parts[] = {a, b, c};
  const intptr_t* part = parts;
  if (room == 0) return status;
  char *at = text, *last = at + room - 1;
  for (; *format != 0; ++format) {
    char digits[12];
    char* end = digits + sizeof digits;
    *--end = 0;
    const char* piece = end;
    if (*format != '%') {
      *--end = *format;
      piece = end;
    } else if (*++format == 's') {
      piece = reinterpret_cast<const char*>(*part++);
    } else {
      uint32_t rest = static_cast<uint32_t>(*part++);
      do *--end = static_cast<char>('0' + rest % 10);
      while ((rest /= 10) != 0);
      piece = end;
    }
    while (*piece != 0 && at != last) *at++ = *piece++;
  }
  *at = 0;
  return status;
}

}  // namespace minbuild
