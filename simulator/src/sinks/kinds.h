// The makers that trace_sinks() lists, one source file each.
#pragma once

#include <memory>
#include <string>

#include "ns_dist/sinks.h"

namespace ns_dist {

Result<std::unique_ptr<TraceSink>> make_perfetto_sink(const std::string& path);
Result<std::unique_ptr<TraceSink>> make_csv_sink(const std::string& path);

}  // namespace ns_dist
