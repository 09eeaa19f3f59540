// The calls of runtime/system.h on the disk in memory.
#include "disk.h"

Disk disk;

namespace minbuild {

int system_open(const char* path, int flags) {
  if (disk.failing("open")) return disk.error ? disk.error : -EIO;
  std::string name = path;
  if (name == "." || (name.size() > 1 && name.substr(name.size() - 2) == "/.")) return disk.open[disk.next] = -1, disk.next++;
  auto at = disk.names().find(name);
  if (at == disk.names().end()) {
    if ((flags & O_CREAT) == 0) return -ENOENT;
    disk.files.push_back({});
    Names changed = disk.names();
    changed[name] = static_cast<int>(disk.files.size()) - 1;
    disk.change(changed);
    at = disk.names().find(name);
  } else if (flags & O_EXCL) {
    return -EEXIST;
  }
  disk.open[disk.next] = at->second;
  return disk.next++;
}
intptr_t system_size(int file) {
  auto at = disk.open.find(file);
  if (disk.failing("size") || at == disk.open.end()) return -EIO;
  return static_cast<intptr_t>(disk.files[static_cast<size_t>(at->second)].bytes.size());
}
intptr_t system_write(int file, const void* from, size_t size) {
  if (disk.failing("write") || (disk.error == kNothingWritten && disk.fails >= 0 && disk.call > disk.fails)) {
    if (disk.error == kNothingWritten) {
      if (disk.call > disk.fails + 1000) printf("writes that write nothing go on for ever\n"), exit(1);
      return 0;
    }
    if (disk.error != 0) return disk.error;
    size = (size + 1) / 2;
  }
  disk.files[static_cast<size_t>(disk.open.at(file))].bytes.append(static_cast<const char*>(from), size);
  return static_cast<intptr_t>(size);
}
void* system_map(size_t size, int flags, int file) {
  if (disk.failing("map") || static_cast<intptr_t>(size) <= 0) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, size) != 0) return nullptr;
  memset(memory, 0, size);
  if ((flags & MAP_ANONYMOUS) == 0) {
    auto at = disk.open.find(file);
    if (at == disk.open.end()) return free(memory), nullptr;
    const std::string& bytes = disk.files[static_cast<size_t>(at->second)].bytes;
    memcpy(memory, bytes.data(), size < bytes.size() ? size : bytes.size());
  }
  return memory;
}
void system_unmap(void* memory, size_t) { free(memory); }
int system_sync(int file) {
  if (disk.failing("sync")) return disk.error ? disk.error : -EIO;
  auto at = disk.open.find(file);
  if (at == disk.open.end()) return -EBADF;
  if (at->second < 0) disk.history = {disk.names()};
  else disk.files[static_cast<size_t>(at->second)].synced = disk.files[static_cast<size_t>(at->second)].bytes;
  return 0;
}
int system_close(int file) {
  const bool fails = disk.failing("close");
  return disk.open.erase(file) && !fails ? 0 : -EIO;  // one that fails has closed, too
}
int system_rename(const char* from, const char* to) {
  if (disk.failing("rename")) return disk.error ? disk.error : -EIO;
  Names changed = disk.names();
  auto at = changed.find(from);
  if (at == changed.end()) return -ENOENT;
  changed[to] = at->second;
  changed.erase(from);
  disk.change(changed);
  return 0;
}
int system_mode_of(const char* path) {
  if (disk.failing("stat")) return disk.error ? disk.error : -EIO;
  auto at = disk.names().find(path);
  if (at == disk.names().end()) return -ENOENT;
  return static_cast<int>(disk.files[static_cast<size_t>(at->second)].mode);
}
int system_mode(int file, int mode) {
  if (disk.failing("mode")) return disk.error ? disk.error : -EIO;
  disk.files[static_cast<size_t>(disk.open.at(file))].mode = S_IFREG | (mode & 07777);
  return 0;
}
void system_remove(const char* path) {
  disk.failing("remove");
  Names changed = disk.names();
  if (changed.erase(path)) disk.change(changed);
}

}  // namespace minbuild
