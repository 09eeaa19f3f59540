// Error messages: in words, without printf, or as codes.
#include "runtime/session.h"

namespace minbuild {
namespace {

#if MB_ERROR_MESSAGES

// All texts in five bits a letter, one after the other: its letters, its status, and 0. Beside the same in
// bytes this saves 168 bytes (mlp) to 184 (bert_tiny). The price: texts are of small letters, blanks, commas and
// colons, which the static_assert below holds.
enum : uint32_t { kEnd, kText = 27, kNumber, kBlank, kComma, kColon };
constexpr uint32_t code_of(const char* letter) {
  if (letter[0] >= 'a' && letter[0] <= 'z') return static_cast<uint32_t>(letter[0] - 'a' + 1);
  if (letter[0] == '%') return letter[1] == 's' ? kText : kNumber;
  if (letter[0] == ' ') return kBlank;
  if (letter[0] == ',') return kComma;
  return letter[0] == ':' ? uint32_t{kColon} : 32;
}
struct Text {
  mb_status status;
  const char* text;
};
constexpr Text kAll[] = {
#define MB_FAILURE(name, status, text) {status, text},
#include "runtime/errors.inc"
#undef MB_FAILURE
};
// Calls put(code) for every code of every text.
template <class Put>
constexpr void each_code(Put& put) {
  for (const Text& text : kAll) {
    for (const char* letter = text.text; *letter != 0; letter += *letter == '%' ? 2 : 1) put(code_of(letter));
    put(text.status);
    put(kEnd);
  }
}
struct Counter {
  uint32_t bits = 0;
  bool known = true;
  constexpr void operator()(uint32_t code) { bits += 5, known &= code < 32; }
};
constexpr Counter counted() {
  Counter counter;
  each_code(counter);
  return counter;
}
static_assert(counted().known, "texts are of small letters, blanks, commas and colons");
struct Texts {
  uint8_t bytes[counted().bits / 8 + 2] = {};  // two are read at a time
};
struct Packer {
  Texts texts;
  uint32_t bit = 0;
  constexpr void operator()(uint32_t code) {
    texts.bytes[bit / 8] = static_cast<uint8_t>(texts.bytes[bit / 8] | code << bit % 8);
    texts.bytes[bit / 8 + 1] = static_cast<uint8_t>(code << bit % 8 >> 8);
    bit += 5;
  }
};
constexpr Texts packed() {
  Packer packer = {};
  each_code(packer);
  return packer.texts;
}
constexpr Texts kTexts = packed();

#else

// The properties of a failure that its code needs: its status in the lowest four bits, then two for each thing its text
// names. In one word a failure, so that the texts themselves need not be in the library.
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
  while (*text != 0) {
    ++text;
    MB_OPAQUE(text);  // or compilers make a call of strlen of it
    ++length;
  }
  return length;
}

#if MB_ERROR_MESSAGES
mb_status fail(const mb_session* session, Failure failure, intptr_t a, intptr_t b, intptr_t c) {
  const intptr_t parts[] = {a, b, c};
  const intptr_t* part = parts;
  char *text = session->error, *last = text + sizeof(mb_options::error) - 1;
  uint32_t skip = static_cast<uint8_t>(failure), code = kEnd, status;
  for (uint32_t bit = 0;; bit += 5) {
    uint16_t two;
    __builtin_memcpy(&two, kTexts.bytes + bit / 8, sizeof two);
    status = code;
    code = two >> bit % 8 & 31;
    if (code == kEnd && skip-- == 0) break;
    if (code == kEnd || skip > 0) continue;
    char digits[MB_WIDE ? 24 : 12];
    char* piece = digits + sizeof digits;
    *--piece = 0;
    if (code == kText) piece = reinterpret_cast<char*>(*part++);
    else if (code == kNumber) piece = digits_of(static_cast<Divisor>(*part++), piece);
    // A letter, or a byte of " ,:" in one word, where its code modulo 4 has it: a table of three would take an address.
    else *--piece = static_cast<char>(code < kText ? code + 'a' - 1 : 0x3a2c2000u >> code % 4 * 8);
    while (*piece != 0 && text != last) *text++ = *piece++;
  }
  text[-1] = 0;  // for the status, which looked like a letter
  return static_cast<mb_status>(status);
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
