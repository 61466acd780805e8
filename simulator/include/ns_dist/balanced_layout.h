// Which layers each model chunk should hold, so that no stage waits long for another.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ns_dist/pipeline_layout.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/scenario.h"
#include "ns_dist/session.h"

namespace ns_dist {

// Seconds that one microbatch takes in each part of a model, forward and backward.
struct PartTimes {
  double embedding = 0;
  std::vector<double> layers;
  double predictions = 0;  // all layers for multi-token prediction, and how many these are
  std::int64_t prediction_count = 0;
  double loss = 0;
};

// The positions under which the busiest stage has least to do, of those that moving single layers from `start` reaches.
// Of two divisions with the same busiest stage, the one with evener stages, then with evener positions. Stages of two
// directions do the work of both. Where chunks go around the stages, each round is as long as its longest position.
// Layers for multi-token prediction come at the last position, or alone before it. `most_first`: layers that the first
// position may hold, which waits longest for its microbatches' gradients.
std::vector<PositionParts> balanced(const PartTimes& times, const Seats& seats, std::vector<std::int64_t> start,
                                    std::int64_t most_first = std::numeric_limits<std::int64_t>::max());

// Layouts of this plan's stages and chunks, whatever its own division: the most even one, and where that gives the
// first position more layers than others, one that does not and needs less memory. Empty where there is no pipeline, or
// none that can be divided.
std::vector<std::string> balanced_layouts(const Scenario& scenario, const Session& session);

}  // namespace ns_dist
