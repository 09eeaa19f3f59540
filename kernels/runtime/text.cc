// Error texts, without printf.
#include "runtime/session.h"

namespace minbuild {

Text& Text::operator<<(const char* text) {
  if (at == nullptr) return *this;
  while (at != end && *text != 0) *at++ = *text++;
  *at = 0;
  return *this;
}

Text& Text::operator<<(int64_t number) {
  char digits[21];
  char* first = digits + 20;
  *first = 0;
  bool negative = number < 0;
  uint64_t rest = negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  do {
    *--first = static_cast<char>('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (negative) *--first = '-';
  return *this << static_cast<const char*>(first);
}

}  // namespace minbuild
