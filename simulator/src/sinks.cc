#include "ns_dist/sinks.h"

#include <array>

#include "sinks/kinds.h"

namespace ns_dist {

std::span<const TraceSinkKind> trace_sinks() {
  static constexpr std::array<TraceSinkKind, 2> kSinks = {{
      {"perfetto", "Chrome trace events in JSON; opens in ui.perfetto.dev and chrome://tracing", make_perfetto_sink},
      {"csv", "one line a node: stage, lane, name, category, microbatch, layer, start and end", make_csv_sink},
  }};
  return kSinks;
}

}  // namespace ns_dist
