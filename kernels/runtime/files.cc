// The parts of the API that need an operating system: memory of the session's own, sessions from files, and saving.
#include "minbuild/config.h"

#if MB_FILES
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/memory.h"
#include "runtime/session.h"

namespace minbuild {

void* map_memory(size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void unmap_memory(void* memory, size_t size) { munmap(memory, size); }

namespace {

// Maps a whole file privately: pages are read when touched, and writes to frozen parameters stay in this process.
void* map_file(const char* path, size_t* size) {
  int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  off_t length = lseek(file, 0, SEEK_END);
  *size = static_cast<size_t>(length);
  void* memory = length > 0 ? mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  return memory == MAP_FAILED ? nullptr : memory;
}

int write_all(void* user, const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    ssize_t written = write(*static_cast<int*>(user), at, size);
    if (written <= 0) return 1;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return 0;
}

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" {

mb_status mb_create_from_files(const char* plan, const char* checkpoint, const mb_options* options, mb_session** session) {
  const char* paths[] = {plan, checkpoint};
  void* maps[2] = {};
  size_t sizes[2] = {};
  mb_status status = MB_OK;
  for (int i = 0; i < 2 && status == MB_OK; ++i) {
    if (paths[i] == nullptr) continue;
    maps[i] = map_file(paths[i], &sizes[i]);
    if (maps[i] != nullptr) continue;
    ErrorText error = {nullptr, 0};
    if (options != nullptr && options->error != nullptr) error = {options->error, options->error_size};
    status = error.fail(MB_IO, "cannot read %s", word_of(paths[i]));
  }
  if (status == MB_OK) status = mb_create(maps[0], sizes[0], maps[1], sizes[1], options, session);
  for (int i = 0; i < 2; ++i) {
    if (status != MB_OK) {
      if (maps[i] != nullptr) unmap_memory(maps[i], sizes[i]);
      continue;
    }
    (*session)->mapped[i + 1] = maps[i];
    (*session)->mapped_size[i + 1] = sizes[i];
  }
  return status;
}

mb_status mb_save_checkpoint(mb_session* s, const char* path, int include_optimizer) {
  char temporary[1024];
  uint32_t length = length_of(path);
  if (length + 5 > sizeof temporary) return s->error.fail(MB_INVALID_ARGUMENT, "the path %s is too long", word_of(path));
  memcpy(temporary, path, length);
  memcpy(temporary + length, ".new", 5);
  int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  mb_status status = MB_IO;
  if (file >= 0) {
    status = mb_write_checkpoint(s, include_optimizer, write_all, &file);
    int failed = fsync(file);
    failed |= close(file);
    if (status == MB_OK && (failed != 0 || rename(temporary, path) != 0)) status = MB_IO;
    if (status != MB_OK) unlink(temporary);
  }
  return status == MB_OK ? status : s->error.fail(status, "cannot write %s; it is as it was", word_of(path));
}

}  // extern "C"
#endif
