// A file that text is streamed into.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {

class TextFile {
 public:
  explicit TextFile(std::string path) : path_(std::move(path)), file_(path_, std::ios::binary) {}

  template <class... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(fmt::appender(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlush) flush();
  }

  // Errors: the file could not be opened or written.
  Result<void> check() const {
    if (file_) return {};
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("cannot be written: {}", std::strerror(errno)),
                 path_,
                 "a path that can be written",
                 "",
                 {}});
  }

  Result<void> close() {
    flush();
    file_.close();
    return check();
  }

 private:
  static constexpr std::size_t kFlush = 1 << 16;

  void flush() {
    file_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  std::string path_;
  std::ofstream file_;
  fmt::memory_buffer buffer_;
};

}  // namespace ns_dist
