#include "harness/launch/temporary_tree.hpp"

#include <cerrno>
#include <filesystem>
#include <new>
#include <utility>

#include <unistd.h>

namespace lockstep::launch {

namespace {

// A call that fails for a moment, because another program takes the last open file or the last memory, is repeated.
void remove_tree(const std::string& path) noexcept {
  constexpr int most_attempts = 5;
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return;
    try {
      std::error_code error;
      std::filesystem::remove_all(path, error);
      if (!error) return;
    } catch (const std::bad_alloc&) {  // the next attempt may find memory
    }
    ::usleep(1000U << attempt);
  }
}

}  // namespace

TemporaryTree* TemporaryTree::newest = nullptr;

TemporaryTree::TemporaryTree(std::string path) : path_(std::move(path)), owner_(::getpid()), older_(newest) {
  newest = this;
}

TemporaryTree::~TemporaryTree() {
  TemporaryTree** link = &newest;
  while (*link != this) link = &(*link)->older_;
  *link = older_;
  remove_tree(path_);
}

void TemporaryTree::remove_all_of_process() noexcept {
  for (const TemporaryTree* each = newest; each != nullptr; each = each->older_)
    if (each->owner_ == ::getpid()) remove_tree(each->path_);
}

}  // namespace lockstep::launch
