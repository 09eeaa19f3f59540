// What is said of failures: in words, without printf, or as codes.
#include "runtime/session.h"

namespace minbuild {
namespace {

#if MB_ERROR_MESSAGES

// A status and a text for each Failure, in their order.
#define MB_BYTE_MB_INVALID_ARGUMENT "\1"
#define MB_BYTE_MB_BAD_PLAN "\2"
#define MB_BYTE_MB_MISSING_KERNEL "\3"
#define MB_BYTE_MB_BAD_CHECKPOINT "\4"
#define MB_BYTE_MB_OUT_OF_MEMORY "\5"
#define MB_BYTE_MB_BAD_SHAPE "\6"
#define MB_BYTE_MB_BAD_VALUE "\7"
#define MB_BYTE_MB_IO "\10"
#define MB_BYTE_MB_UNSUPPORTED "\11"
static_assert(MB_INVALID_ARGUMENT == 1 && MB_BAD_PLAN == 2 && MB_MISSING_KERNEL == 3 && MB_BAD_CHECKPOINT == 4 &&
                  MB_OUT_OF_MEMORY == 5 && MB_BAD_SHAPE == 6 && MB_BAD_VALUE == 7 && MB_IO == 8 && MB_UNSUPPORTED == 9,
              "as the texts begin");
// A literal without the byte that would end it: all texts in it end themselves.
template <size_t kSize>
struct Texts {
  char all[kSize - 1] = {};
  constexpr explicit Texts(const char (&literal)[kSize]) {
    for (size_t i = 0; i + 1 < kSize; ++i) all[i] = literal[i];
  }
};
constexpr Texts kTexts(
#define MB_FAILURE(name, status, text) MB_BYTE_##status text "\0"
#include "runtime/errors.inc"
#undef MB_FAILURE
);

#else

// What a code needs of a failure: its status in the lowest four bits, then two for each thing its text names.
enum Kind : uint16_t { kText = 1, kNumber = 2 };
constexpr uint16_t brief(mb_status status, const char* text) {
  uint16_t kinds = 0;
  for (int shift = 4; *text != 0; ++text)
    if (*text == '%') kinds |= static_cast<uint16_t>((text[1] == 's' ? kText : kNumber) << shift), shift += 2;
  return kinds | status;
}
constexpr uint16_t kBriefs[] = {
#define MB_FAILURE(name, status, text) brief(status, text),
#include "runtime/errors.inc"
#undef MB_FAILURE
};

#endif

// The digits of a number, at the end of what they are written to; returns where they begin.
MB_INLINE char* digits_of(Divisor number, char* end) {
  do *--end = static_cast<char>('0' + number % 10);
  while ((number /= 10) != 0);
  return end;
}

}  // namespace

uint32_t length_of(const char* text) {
  uint32_t length = 0;
  while (text[length] != 0) ++length;
  return length;
}

#if MB_ERROR_MESSAGES
mb_status fail(const mb_session* session, Failure failure, intptr_t a, intptr_t b, intptr_t c) {
  const intptr_t parts[] = {a, b, c};
  const intptr_t* part = parts;
  const char* format = kTexts.all;
  for (uint8_t skip = static_cast<uint8_t>(failure); skip > 0; --skip) format += length_of(format) + 1;
  mb_status status = static_cast<mb_status>(*format++);
  char *text = session->error, *last = text + sizeof(mb_options::error) - 1;
  for (; *format != 0; ++format) {
    char digits[MB_WIDE ? 24 : 12];
    char* piece = digits + sizeof digits;
    *--piece = 0;
    if (*format != '%') *--piece = *format;
    else if (*++format == 's') piece = reinterpret_cast<char*>(*part++);
    else piece = digits_of(static_cast<Divisor>(*part++), piece);
    while (*piece != 0 && text != last) *text++ = *piece++;
  }
  *text = 0;
  return status;
}
#else
mb_status fail(const mb_session* session, Failure failure, intptr_t a, intptr_t b, intptr_t c) {
  const intptr_t parts[] = {static_cast<intptr_t>(failure), a, b, c};
  const intptr_t* part = parts;
  const uint32_t brief = kBriefs[static_cast<uint8_t>(failure)];
  char *text = session->error, *last = text + sizeof(mb_options::error) - 1;
  *text++ = 'E';
  for (uint32_t kinds = brief >> 4 << 2 | kNumber; kinds != 0; kinds >>= 2) {
    char digits[MB_WIDE ? 24 : 12];
    char* piece = digits + sizeof digits;
    *--piece = 0;
    piece = (kinds & 3) == kText ? reinterpret_cast<char*>(*part) : digits_of(static_cast<Divisor>(*part), piece);
    if (part++ != parts && text != last) *text++ = ' ';
    while (*piece != 0 && text != last) *text++ = *piece++;
  }
  *text = 0;
  return static_cast<mb_status>(brief & 15);
}
#endif

}  // namespace minbuild
