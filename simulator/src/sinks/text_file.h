// A file that formatted text is streamed into.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "ns_dist/files.h"

namespace ns_dist {

class TextFile {
 public:
  explicit TextFile(OutputFile file) : file_(std::move(file)) {}

  template <class... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(fmt::appender(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlush) flush();
  }

  // Errors: as OutputFile.
  Result<void> check() const { return file_.check(); }
  Result<void> finish() {
    flush();
    return file_.finish();
  }

 private:
  static constexpr std::size_t kFlush = 1 << 16;

  void flush() {
    file_.write({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }

  OutputFile file_;
  fmt::memory_buffer buffer_;
};

}  // namespace ns_dist
