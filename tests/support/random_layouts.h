// Layouts of pipelines for property tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ns_dist/model.h"
#include "ns_dist/parallel_plan.h"
#include "ns_dist/pipeline_layout.h"
#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {

// One of the plan's own stages and chunks: layers fall where `below` says, and positions may be without any. Even where
// the schedule has no such chunks. `below(n)`: a random number of 0 to n - 1.
template <class Below>
PipelineLayout any_layout(const Model& model, const ParallelPlan& plan, bool predicts, Below below) {
  const auto schedule = pipeline_schedule(plan.schedule);
  if (!schedule || !(*schedule)->has_chunks(plan.vpp)) return {};
  const auto positions = static_cast<std::int64_t>((*schedule)->seats({plan.pp, 1, plan.vpp})[0].size());
  std::vector<PositionParts> parts(static_cast<std::size_t>(positions));
  std::int64_t last = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::int64_t at = below(positions);
    ++parts[static_cast<std::size_t>(at)].layers;
    last = std::max(last, at);
  }
  if (predicts) parts[static_cast<std::size_t>(last + below(positions - last))].predictions = model.prediction_layers;
  return {pipeline_layout_text(parts)};
}

}  // namespace ns_dist
