// The interface of a writer of timelines: begin, one call of span for each node, finish.
#pragma once

#include "ns_dist/execution_graph.h"
#include "ns_dist/result.h"
#include "ns_dist/timeline.h"

namespace ns_dist {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual Result<void> begin(const ExecutionGraph& graph) = 0;
  // Called for every node, in id order.
  virtual Result<void> span(NodeId node, const Span& span) = 0;
  virtual Result<void> finish() = 0;
};

}  // namespace ns_dist
