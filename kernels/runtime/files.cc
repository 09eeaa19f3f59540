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
namespace {

// Maps a file privately, so that writes to frozen parameters stay in this process, or zeros where there is none.
void* map(size_t size, int file) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// The sink of mb_save_checkpoint; `user` is the file.
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

void* map_memory(size_t size) { return map(size, -1); }
void unmap_memory(void* memory, size_t size) { munmap(memory, size); }

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
    int file = open(paths[i], O_RDONLY | O_CLOEXEC);
    // A file that cannot be opened or has no bytes is not mapped either.
    sizes[i] = static_cast<size_t>(lseek(file, 0, SEEK_END));
    if (file >= 0) maps[i] = map(sizes[i], file);
    close(file);
    if (maps[i] != nullptr) continue;
    ErrorText error = {nullptr, 0};
    if (options != nullptr && options->error != nullptr) error = {options->error, options->error_size};
    status = error.fail(MB_IO, "cannot read %s", word_of(paths[i]));
  }
  if (status == MB_OK) status = mb_create(maps[0], sizes[0], maps[1], sizes[1], options, session);
  for (int i = 0; i < 2; ++i) {
    if (status == MB_OK && (i == 0 || (*session)->keeps_checkpoint)) {
      (*session)->mapped[i + 1] = maps[i];
      (*session)->mapped_size[i + 1] = sizes[i];
    } else if (maps[i] != nullptr) {
      unmap_memory(maps[i], sizes[i]);
    }
  }
  return status;
}

mb_status mb_save_checkpoint(mb_session* s, const char* path, int include_optimizer) {
  char temporary[1024];
  uint32_t length = length_of(path);
  mb_status status = MB_IO;
  if (length + 5 <= sizeof temporary) {
    memcpy(temporary, path, length);
    memcpy(temporary + length, ".new", 5);
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file >= 0) {
      status = mb_write_checkpoint(s, include_optimizer, write_all, &file);
      if ((fsync(file) | close(file)) != 0 || status != MB_OK || rename(temporary, path) != 0) {
        status = MB_IO;
        unlink(temporary);
      }
    }
  }
  return status == MB_OK ? status : s->error.fail(status, "cannot write %s", word_of(path));
}

}  // extern "C"
#endif
