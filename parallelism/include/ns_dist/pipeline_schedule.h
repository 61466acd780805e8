// Pipeline schedules as data: where the parts of the model lie, and in which order each stage runs its passes.
//
//   NS_TRY(const PipelineSchedule* schedule, pipeline_schedule("1f1b"));
//   NS_TRY(const ScheduleFacts facts, check(schedule->seats(shape), *schedule->orders(shape)));
//   facts.most_live[0];                       // forward passes whose activations stage 0 holds at once
//
// A position is a part of the model (an embedding, some layers, a loss); positions are counted from the first layer to
// the last. A seat is a chunk of a stage that holds a position. The planner and the simulator read the placement, the
// lists of passes and the traits of a schedule, never its name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/parallel_plan.h"
#include "ns_dist/result.h"

namespace ns_dist {

// kBackward computes both gradients. Schedules that split it run kInputGradient first, which the stage before waits
// for, and kWeightGradient at any time later (Qi et al. 2023, arXiv 2401.10241, s.2: B and W).
enum class PassKind : std::uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };
inline constexpr std::size_t kPassKindCount = 4;

// One pass of one microbatch through one model chunk of a stage. `beside_previous`: it runs at the same time as the
// pass before it in the list; one computes while the other communicates (DeepSeek-V3, arXiv 2412.19437, s.3.2.1). The
// forward pass of such a pair comes first in the list.
struct SchedulePass {
  PassKind kind = PassKind::kForward;
  std::int32_t microbatch = 0;
  std::int32_t chunk = 0;
  bool beside_previous = false;
  friend bool operator==(const SchedulePass&, const SchedulePass&) = default;
};

// `passes`, `repeats` times; in repeat r (from 0) every microbatch is larger by r * shift. A list of loops has a size
// that does not depend on the number of microbatches.
struct PassLoop {
  std::vector<SchedulePass> passes;
  std::int64_t repeats = 1;
  std::int32_t shift = 1;
  friend bool operator==(const PassLoop&, const PassLoop&) = default;
};
using PassList = std::vector<PassLoop>;

// Every pass of `list`, in order.
std::vector<SchedulePass> flatten(const PassList& list);

struct ScheduleShape {
  std::int64_t stages = 1, microbatches = 1, chunks = 1;
  friend bool operator==(const ScheduleShape&, const ScheduleShape&) = default;
};

struct Seat {
  std::int32_t stage = 0, chunk = 0;
  friend bool operator==(const Seat&, const Seat&) = default;
};

// seats[direction][position]. A microbatch travels in one direction: forward passes from position 0 on, backward passes
// back. Schedules with two directions hold every position twice.
using Seats = std::vector<std::vector<Seat>>;

// Chunk after chunk around the stages (Narayanan et al. 2021, arXiv 2104.04473, fig. 4).
Seats loop_seats(const ScheduleShape& shape);
// From the first stage to the last and back: the first stage holds the first and the last position (Qi et al. 2023,
// fig. 6). Needs 2 chunks.
Seats vee_seats(const ScheduleShape& shape);
// Two copies of the model in opposite directions (DualPipe). Microbatches of chunk 0 go from the first stage to the
// last, those of chunk 1 from the last to the first. Each has half of the microbatches, chunk 0 the first half.
Seats mirrored_seats(const ScheduleShape& shape);

struct PipelineSchedule {
  std::string_view name, description;
  std::int64_t least_chunks = 1, most_chunks = 1;  // most_chunks 0: any number
  bool splits_backward = false;
  bool overlaps_messages = false;    // a stage goes on computing while it sends, unless a plan forbids it
  bool pairs_passes = false;         // some passes run beside others
  bool pairs_stages = false;         // half of an even number of stages and of microbatches in each direction
  bool hides_tokens = false;         // is made for experts on several ranks alone: without them it only holds more
  bool groups_microbatches = false;  // runs them in groups (microbatch_group)
  bool has_chunks(std::int64_t chunks) const {
    return chunks >= least_chunks && (most_chunks == 0 || chunks <= most_chunks);
  }
  Seats (*seats)(const ScheduleShape&);
  std::vector<PassList> (*pass_lists)(const ScheduleShape&);  // one a stage, of a shape that it can run
  // The same. Errors: another number of chunks, or one that is odd where pairs are asked for; `where` is a field
  // ("plan/vpp", "training/global_batch") and the hint names the nearest shape that it can run.
  Result<std::vector<PassList>> orders(const ScheduleShape& shape) const;
};

// Every schedule, in the order in which `ns-dist list schedules` shows them.
std::span<const PipelineSchedule* const> pipeline_schedules();

// Static lifetime. Error: no schedule has this name; the hint is the nearest one.
Result<const PipelineSchedule*> pipeline_schedule(std::string_view name);
// That of a plan. A name that check_plan refuses has the traits of the default.
const PipelineSchedule& traits_of(const ParallelPlan& plan);
// The schedule of so many chunks a stage where nobody names one: for one chunk the default; for more the first that
// runs any number of them and computes while it sends.
const PipelineSchedule& schedule_for(std::int64_t chunks);

// Microbatches of which a stage of interleaved passes runs one chunk before it turns to the next: as many as there are
// stages, or the fewest above that leave no smaller group at the end, which Megatron-Core refuses
// (--microbatch-group-size-per-vp-stage). Fewer microbatches than stages are one group.
std::int64_t microbatch_group(const ScheduleShape& shape);

struct ScheduleFacts {
  std::vector<std::int64_t> most_live;  // by stage: most forward passes of which something is kept at once
  std::vector<double> idle;             // by stage: time it waits between its first and its last pass
  // Time of all passes if messages take no time, a forward pass takes 1, either gradient 1 and a whole backward pass 2.
  // Passes that run beside each other take the sum of their times (they share the GPU) and begin when all of them can.
  double makespan = 0;
  double bubble = 0;  // (makespan - work of the busiest stage) / work of the busiest stage
};

// Runs the lists. Errors: a pass that is missing or there twice, a weight gradient before its input gradient, lists
// that wait for each other. Linear in the number of passes.
Result<ScheduleFacts> check(const Seats& seats, std::span<const PassList> orders);

// Bytes that a chunk keeps for one microbatch: from the forward pass to the input gradient, and from there to the
// weight gradient.
struct ChunkBytes {
  double after_forward = 0, after_input_gradient = 0;
  // Of `after_forward`: what the loss keeps. A backward pass, or its input gradient, frees it first. Beside a forward
  // pass, that is before the forward pass reaches its own loss.
  double loss = 0;
  double working = 0;  // that the rest of this pass needs more, and frees
  double logged = 0;   // that are needed for a while when this pass is over
  // What the loss needs for a while: when its forward pass ends, and when its backward pass begins.
  double loss_forward = 0, loss_backward = 0;
  double frozen = 0;  // that a forward pass needs in frozen layers, before it keeps anything
};
// The most bytes that a stage holds at one time. `chunks` by chunk. Its running time does not depend on the number of
// repeats.
double most_held(const PassList& list, std::span<const ChunkBytes> chunks);

// What a stage holds when a pass is over. `number`: of the pass, from 0.
struct HeldPoint {
  std::int64_t number = 0;
  SchedulePass pass;
  double bytes = 0;
  double most = 0;            // while the pass works, if it needs more than what is held before it; else `bytes`
  std::int64_t left_out = 0;  // passes before it that are no points, as their loop repeats
};
// Every pass of the list; of a loop only its first and its last repeat. Between these two what is held changes by the
// same bytes in each repeat, so the largest `most` is most_held(list, chunks).
std::vector<HeldPoint> held_over_time(const PassList& list, std::span<const ChunkBytes> chunks);

// Passes of a chunk of which something is held: what is kept behind the forward pass, or behind the input gradient.
struct LivePasses {
  std::int64_t after_forward = 0, after_input_gradient = 0;
};
// By chunk, behind the point number `point` of held_over_time.
std::vector<LivePasses> live_passes(const PassList& list, std::size_t chunks, std::size_t point);

// "F7", "B0", "I0" and "W0": the input and the weight gradient; with `chunks` above 1 "F7.1" of chunk 1.
std::string pass_text(const SchedulePass& pass, std::int64_t chunks);

}  // namespace ns_dist
