// Protobuf prints what it cannot parse; we return it.
#pragma once

#if __has_include(<google/protobuf/stubs/logging.h>)  // until version 21
#include <google/protobuf/stubs/logging.h>

namespace ns_dist::chakra {

using SilentProtobuf = google::protobuf::LogSilencer;  // while one lives, protobuf prints nothing

}  // namespace ns_dist::chakra
#else
#include <absl/log/globals.h>

namespace ns_dist::chakra {

class SilentProtobuf {
 public:
  SilentProtobuf() { absl::SetMinLogLevel(absl::LogSeverityAtLeast::kInfinity); }
  ~SilentProtobuf() { absl::SetMinLogLevel(before_); }
  SilentProtobuf(const SilentProtobuf&) = delete;
  SilentProtobuf& operator=(const SilentProtobuf&) = delete;

 private:
  const absl::LogSeverityAtLeast before_ = absl::MinLogLevel();
};

}  // namespace ns_dist::chakra
#endif
