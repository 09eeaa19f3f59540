// Watches memory by its pages, where the host can protect them: all are read-only but those of a step's own outputs and
// scratch, so that no copy of the session is needed. Of pages that these share with others, the rest is compared.
#ifndef STEP_PAGES_H_
#define STEP_PAGES_H_

#include "step_memory.h"

namespace minbuild {
namespace {

constexpr size_t kOpened = 64;

Range edges[2 * kArgs];  // pages with bytes of the step and others
size_t edge_count;
char* edge_copies;
char* opened[kOpened];  // pages that the session wrote between steps
size_t opened_count;
bool protects;               // this way of watching was chosen
volatile bool inside;        // a kernel
const char* volatile fault;  // the first write of a kernel that is not its own

const Range* range_of(const char* at) {
  for (size_t i = 0; i < range_count; ++i)
    if (at >= ranges[i].start && at < ranges[i].start + ranges[i].size) return &ranges[i];
  return nullptr;
}

char* page_of(char* at) { return at - reinterpret_cast<uintptr_t>(at) % host_page(); }

// Called for a write to a read-only page.
int caught(const void* address) {
  char* at = static_cast<char*>(const_cast<void*>(address));
  bool known = false;
  for (size_t i = 0; i < range_count; ++i)
    known |= at >= ranges[i].start && at < page_of(ranges[i].start + ranges[i].size - 1) + host_page();
  if (!known) return 0;
  if (inside && fault == nullptr) fault = at;
  if (opened_count < kOpened) opened[opened_count++] = page_of(at);
  else begun = true;  // all are protected anew before the next step
  return 1;
}

void protect(const Range& range, bool writable) {
  if (range.size != 0) host_protect(range.start, range.size, writable, caught);
}

// The pages of an argument within what is watched.
Range pages_of(const Piece& piece) {
  const Range* range = piece.size == 0 ? nullptr : range_of(piece.start);
  if (range == nullptr) return {nullptr, 0, nullptr};
  char* start = page_of(piece.start);
  return {start, static_cast<size_t>(page_of(piece.start + piece.size - 1) + host_page() - start), nullptr};
}

void add_edge(char* page) {
  for (size_t i = 0; i < edge_count; ++i)
    if (edges[i].start == page) return;
  char* to = edge_copies + edge_count * host_page();
  const Range* range = range_of(page);
  const size_t rest = static_cast<size_t>(range->start + range->size - page), size = host_page();
  edges[edge_count] = {page, rest < size ? rest : size, to};
  copy(to, page, edges[edge_count++].size);
}

// Opens the pages of a step, and closes all others.
void open_pages(const Arguments& arguments) {
  if (edge_copies == nullptr) edge_copies = static_cast<char*>(host_take(2 * kArgs * host_page()));
  if (begun)
    for (size_t i = 0; i < range_count; ++i) protect(ranges[i], false);
  else
    for (size_t i = 0; i < opened_count; ++i) host_protect(opened[i], host_page(), false, caught);
  begun = false, opened_count = 0, edge_count = 0, fault = nullptr;
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    const Piece piece = arguments.piece(i);
    if (!(arguments.output(i) || arguments.scratch(i))) continue;
    const Range pages = pages_of(piece);
    if (pages.size == 0) continue;
    protect(pages, true);
    char* end = piece.start + piece.size;
    if (piece.start != pages.start) add_edge(pages.start);
    if (end != pages.start + pages.size) add_edge(page_of(end));
  }
  compared = edges, compared_count = edge_count, inside = true;
}

// Finds bytes that a call changed outside of its pages or, in `found`, beside its outputs in them.
void find_fault(int32_t* found) {
  inside = false;
  const char* at = fault;
  if (at == nullptr && found[0] >= 0) at = edges[found[0]].start + found[1];
  const Range* range = at == nullptr ? nullptr : range_of(at);
  if (range == nullptr) return;
  found[0] = static_cast<int32_t>(range - ranges), found[1] = static_cast<int32_t>(at - range->start);
}

void close_pages(const Arguments& arguments) {
  for (int i = 0; i < arguments.row.arg_count; ++i)
    if (arguments.output(i) || arguments.scratch(i)) protect(pages_of(arguments.piece(i)), false);
}

}  // namespace
}  // namespace minbuild

#endif
