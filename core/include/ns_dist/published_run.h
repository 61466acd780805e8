// Training runs that others measured and published, to check forecasts against. configs/runs/<id>.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ns_dist/fields.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct PublishedRun {
  std::string id, table;       // "175b-full"; the table or section of the source
  std::string model, cluster;  // catalog references
  // Fields of ParallelPlan and Training that the publication states, bandwidths of the machine and CUDA graphs of the
  // host: first those of all its runs, then those of this run. If a field occurs twice, the last value holds.
  std::vector<Assignment> set;
  Seconds step;                    // measured; zero where the publication has a rate instead:
  std::string place = {};          // of the run in its file, for errors: "runs.json#/runs/3"
  std::string framework = {};      // whose defaults hold; empty: the usual one's
  std::string gpu = {};            // of `cluster`, or in its own usual one; empty: the cluster's
  std::int64_t gpus_per_node = 0;  // 0: the cluster's
  double tokens_per_s_per_gpu = 0;
  friend bool operator==(const PublishedRun&, const PublishedRun&) = default;
};

// One publication.
struct PublishedRuns {
  std::string id, name, source;
  std::vector<PublishedRun> runs;
};

}  // namespace ns_dist
