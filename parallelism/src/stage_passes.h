// The loops of a schedule as loops of bodies. Plans with the same schedule, stages, chunks and microbatches share them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/plan_cache.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

constexpr bool computes_weight_gradient(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kWeightGradient;
}

// One pass of a body. `first`: its weights may have to be gathered. `last`: its gradients are reduced, because they are
// those of the whole step, or of a round of backward passes.
struct StagePass {
  PassKind kind = PassKind::kForward;
  std::int32_t chunk = 0;
  bool first = false, last = false;
  friend bool operator==(const StagePass&, const StagePass&) = default;
};

// Where a chunk of a stage stands in its direction of travel.
struct Place {
  std::size_t direction = 0, position = 0;
};

struct StagePasses {
  // A pass, or two that run at the same time.
  struct Body {
    StagePass pass;
    std::optional<StagePass> second;
    friend bool operator==(const Body&, const Body&) = default;
  };
  struct Stage {
    std::vector<Place> places;         // by chunk
    std::vector<std::int32_t> chunks;  // in the order of their first forward passes
    std::vector<Body> bodies;
    ProgramLoops loops;
  };
  Seats seats;
  std::vector<PassList> orders;  // by stage
  std::vector<Stage> stages;
  std::size_t positions() const { return seats.front().size(); }
  std::size_t size() const;  // calls of the loops, for a cache
};

// Which backward passes reduce gradients, where that is not the same for all.
enum class Reduces : std::uint8_t {
  kAlike,
  kLast,       // the last one of each chunk
  kRoundEnds,  // those behind which none or one of another chunk computes weight gradients next (ReduceEach::kRound)
};

// What StagePasses depend on.
struct PassesKey {
  const PipelineSchedule* schedule = nullptr;
  ScheduleShape shape;
  bool gathers = false;  // the first forward passes wait for weights
  Reduces reduces = Reduces::kAlike;
  bool forward = false;     // forward passes alone
  std::int64_t frozen = 0;  // frozen_positions: other messages are other passes, whose orders calls have

  using Stored = PassesKey;
  const Stored& store() const { return *this; }
  std::uint64_t hash() const;
  friend bool operator==(const PassesKey&, const PassesKey&) = default;
};

// Bodies are numbered stage after stage: those of its passes between one that starts gathers, if the key says so, and
// one that ends the step. Errors: those of the schedule's orders.
Result<std::shared_ptr<const StagePasses>> stage_passes(const PassesKey& key, PlanCache& cache);

}  // namespace ns_dist
