// How long a fragment takes alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "ns_dist/step_program.h"

namespace ns_dist {

struct NodeSpan {
  double start = 0, end = 0;
};

// What a fragment takes when nothing shares anything, and when each of its nodes runs. `duration` of a WorkId, in
// seconds.
template <class Duration>
double fragment_length(const Fragment& fragment, Duration duration, std::vector<NodeSpan>& spans) {
  std::array<double, kStreamCount> streams{};
  spans.resize(fragment.nodes.size());
  double length = 0;
  for (std::size_t n = 0; n < fragment.nodes.size(); ++n) {
    const FragmentNode& node = fragment.nodes[n];
    double& stream = streams[static_cast<std::size_t>(node.stream)];
    double start = stream;
    for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
      const std::int32_t on = fragment.dependencies[node.first_dependency + d];
      if (on >= 0) start = std::max(start, spans[static_cast<std::size_t>(on)].end);
    }
    stream = start + duration(index(node.work));
    spans[n] = {start, stream};
    length = std::max(length, stream);
  }
  return length;
}

}  // namespace ns_dist
