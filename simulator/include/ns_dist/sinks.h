// Files a timeline can be written to.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ns_dist/result.h"
#include "ns_dist/trace_sink.h"

namespace ns_dist {

struct TraceSinkKind {
  std::string_view name, description;
  // Opens the file. Errors: a path that cannot be written.
  Result<std::unique_ptr<TraceSink>> (*make)(const std::string& path);
};

// Every kind of sink: "perfetto", "csv".
std::span<const TraceSinkKind> trace_sinks();

}  // namespace ns_dist
