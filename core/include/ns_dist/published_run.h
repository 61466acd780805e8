// Training runs that others measured and published, to check forecasts against. configs/runs/<id>.json.
#pragma once

#include <string>
#include <vector>

#include "ns_dist/fields.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct PublishedRun {
  std::string id, table;       // "175b-full"; where in the source it stands
  std::string model, cluster;  // catalog references
  // Fields of ParallelPlan and Training that the publication tells, first for all of its runs; the last of a field
  // holds.
  std::vector<Assignment> set;
  Seconds step;  // measured
  friend bool operator==(const PublishedRun&, const PublishedRun&) = default;
};

// One publication.
struct PublishedRuns {
  std::string id, name, source;
  std::vector<PublishedRun> runs;
};

}  // namespace ns_dist
