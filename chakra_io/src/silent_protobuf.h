// Protobuf prints what it cannot parse; we return it.
#pragma once

#if __has_include(<google/protobuf/stubs/logging.h>)  // until version 21
#include <google/protobuf/stubs/logging.h>

namespace ns_dist::chakra {

using SilentProtobuf = google::protobuf::LogSilencer;  // while one lives, protobuf prints nothing

}  // namespace ns_dist::chakra
#else
#include <absl/log/globals.h>

#include <mutex>

namespace ns_dist::chakra {

class SilentProtobuf {
 public:
  SilentProtobuf() {
    const std::lock_guard lock(mutex_);
    if (living_++ > 0) return;
    before_ = absl::MinLogLevel();
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kInfinity);
  }
  ~SilentProtobuf() {
    const std::lock_guard lock(mutex_);
    if (--living_ == 0) absl::SetMinLogLevel(before_);
  }
  SilentProtobuf(const SilentProtobuf&) = delete;
  SilentProtobuf& operator=(const SilentProtobuf&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int living_ = 0;  // of all threads
  static inline absl::LogSeverityAtLeast before_{};
};

}  // namespace ns_dist::chakra
#endif
