// Rows of a collection of published training runs, as questions to the simulator.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/model.h"
#include "ns_dist/result.h"
#include "ns_dist/run_suite.h"
#include "ns_dist/scenario.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct CollectedRun {
  std::string id;
  std::string key;          // equal for rows of one configuration
  std::string publication;  // title of the source
  std::string work;         // size of the model, GPUs, batch and number format; what a plan is for, with `model`
  Model model;
  ScenarioSpec spec;  // all but the model
  // What the row does not tell and its authors chose: `spec` has the middle one of the plans that the
  // forecast cannot tell from the fastest.
  bool micro_batch_untold = false, chunks_untold = false;
  Seconds measured;
  // Where the row has this instead: FLOP of the model that each GPU does, with half of the attention's if `causal`.
  FlopsPerSecond rate;
  bool rate_is_causal = false;
  Bytes memory;             // measured, of the fullest GPU; zero where the row has none
  std::string memory_kind;  // "allocated", "nvidia-smi", ...
  // What another tool forecasts of this run; zero and "" where the row has none.
  std::string peer;
  Seconds peer_step;
  Bytes peer_memory;
};

struct WantedRuns {
  std::span<const std::string> titles = {};  // only publications whose title holds one of these; empty: all
  RunRows rows = RunRows::kRecommended;
};

// The `wanted` rows of `file`; its keys are those of check_run_collection (run_suite.h). A row with a mistake is
// left out and noted in `mistakes`. Errors: a file that cannot be read, or is no JSON array.
Result<std::vector<CollectedRun>> read_run_collection(const std::filesystem::path& file, const Catalog& catalog,
                                                      std::vector<Error>& mistakes, const WantedRuns& wanted = {});

// The scenario that a row describes. Errors: as resolve.
Result<Scenario> scenario_of(const CollectedRun& run, const Catalog& catalog);
// The run's model with the defaults of all else: what its fields are set on.
Result<Scenario> base_of(const CollectedRun& run, const Catalog& catalog);

}  // namespace ns_dist
