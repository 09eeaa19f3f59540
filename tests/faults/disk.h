// A disk with a file system, as strict as POSIX allows: bytes survive a loss of power if the file was synced after they were
// written, names if the folder was synced after they changed, everything else may survive or not, or in part.
#ifndef MINBUILD_TESTS_FAULTS_DISK_H_
#define MINBUILD_TESTS_FAULTS_DISK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/system.h"

// An error of Disk: from the call that fails on, writes return 0.
constexpr int kNothingWritten = 1;

struct File {
  std::string bytes, synced;
  uint32_t mode = S_IFREG | 0644;
};
using Names = std::map<std::string, int>;  // path -> file

struct Disk {
  std::vector<File> files;
  std::vector<Names> history = {Names{}};  // of the folder since it was synced last; the last is what programs see
  std::map<int, int> open;                  // descriptor -> file, -1 for the folder
  int next = 3;

  int call = 0;         // calls so far
  int fails = -1;       // the call that fails
  int error = 0;        // with -errno, or 0: a write stops half way, or kNothingWritten
  int keeps = -1;       // the call before which a copy of the disk is kept
  std::shared_ptr<Disk> kept;
  std::vector<std::string> log;

  Names& names() { return history.back(); }
  void change(const Names& names) { history.push_back(names); }
  // Whether this call fails, and with what.
  bool failing(const char* what) {
    log.push_back(what);
    if (call == keeps) {
      kept.reset();
      kept = std::make_shared<Disk>(*this);
    }
    return call++ == fails;
  }
  void put(const std::string& path, const std::string& bytes, uint32_t mode) {
    files.push_back({bytes, bytes, mode});
    history = {names()};
    names()[path] = static_cast<int>(files.size()) - 1;
  }
  // What may be in `path` after a loss of power now: for each state of the folder since it was synced, the synced bytes,
  // the current ones, and the current ones cut or zeroed where they were not synced.
  std::vector<std::string> after_power_loss(const std::string& path) const {
    std::vector<std::string> found;
    for (const Names& names : history) {
      auto at = names.find(path);
      if (at == names.end()) {
        found.push_back("(no file)");
        continue;
      }
      const File& file = files[static_cast<size_t>(at->second)];
      found.push_back(file.synced);
      found.push_back(file.bytes);
      if (file.bytes == file.synced) continue;
      found.push_back(file.bytes.substr(0, file.bytes.size() / 2));
      std::string zeroed = file.bytes;
      for (size_t i = file.bytes.size() / 2; i < zeroed.size(); ++i) zeroed[i] = 0;
      found.push_back(zeroed);
    }
    return found;
  }
};

extern Disk disk;

#endif  // MINBUILD_TESTS_FAULTS_DISK_H_
