// The answer: how long a step takes, whether it fits, where the time goes and what would help.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/critical_path.h"
#include "ns_dist/forecast.h"
#include "ns_dist/memory.h"
#include "ns_dist/scenario.h"
#include "ns_dist/sensitivity.h"
#include "ns_dist/timeline.h"
#include "ns_dist/units.h"

namespace ns_dist {

// Where a stage's time goes, averaged over the stages; the parts sum to the step.
//
// A stage computes, or it waits. A wait is followed back from the node that ends it: the time of a collective or
// message that it waits for is exposed communication; what is left, waiting for other stages to compute, is bubble.
struct Breakdown {
  Seconds compute, recompute, tp_exposed, cp_exposed, ep_exposed, pp_exposed, dp_exposed, bubble, optimizer, launches,
      other;
  Seconds total() const;
};

// Its parts, in the order of reports.
struct BreakdownPart {
  std::string_view key, name;  // "tp_exposed", "tensor-parallel communication"
  Seconds Breakdown::*seconds;
};
inline constexpr std::array<BreakdownPart, 11> kBreakdownParts = {
    {{"compute", "compute", &Breakdown::compute},
     {"recompute", "recomputation", &Breakdown::recompute},
     {"tp_exposed", "tensor-parallel communication", &Breakdown::tp_exposed},
     {"cp_exposed", "context-parallel communication", &Breakdown::cp_exposed},
     {"ep_exposed", "expert-parallel communication", &Breakdown::ep_exposed},
     {"pp_exposed", "pipeline messages", &Breakdown::pp_exposed},
     {"dp_exposed", "data-parallel communication", &Breakdown::dp_exposed},
     {"bubble", "pipeline bubble", &Breakdown::bubble},
     {"optimizer", "optimizer", &Breakdown::optimizer},
     {"launches", "waiting for launches", &Breakdown::launches},
     {"other", "other", &Breakdown::other}}};

inline Seconds Breakdown::total() const {
  Seconds sum;
  for (const BreakdownPart& part : kBreakdownParts) sum += this->*part.seconds;
  return sum;
}

// The part that work of this category counts as.
Seconds Breakdown::*part_of(Category category);

// Of a step that is written out, by the times at which its nodes ran. The analysis of a program has the same parts.
Breakdown breakdown(const ExecutionGraph& graph, const Timeline& timeline);

// A PathEntry of this name takes no time: of one kind of kernels or collectives, what those that the path does not have
// add to the interval.
inline constexpr std::string_view kHiddenWork = "hidden work";

// How often a work is on the critical path, and what it took there altogether.
struct PathEntry {
  std::string name;       // as in WorkItem::name
  std::string_view kind;  // operator family or collective; static lifetime
  Forecast forecast;      // of one of them, alone
  std::int64_t count = 0;
  Seconds seconds;
};

// The 90 % interval of a time.
struct Interval {
  Seconds low, high;
};

// A change and the time it saves, by simulating it. `at_most`: no change that can be made, but a limit: what would be
// saved if a cause went away altogether.
struct Improvement {
  std::string change;  // what to do
  Seconds saves;
  std::optional<Interval> interval;  // of `saves`; not of a limit
  bool at_most = false;
  std::vector<Assignment> set;  // what to set; empty for a limit
};

// A change of the plan that makes it fit, and what it then needs and takes.
struct MemoryRemedy {
  Bytes peak, device;  // as StageMemory::total and device; device may be above the GPU's memory: it may run out
  Seconds step;
  std::int64_t ranks = 0;
  std::vector<Assignment> set;
};

// What the 90 % interval of a step is made of, as shares of the step: the forecasts on its critical path, what they
// leave unexplained in measured steps of this kind, and the clock in training where no step of such a GPU was measured.
struct IntervalParts {
  double forecasts_below = 0, forecasts_above = 0;
  std::string_view situation;  // static lifetime
  double rest_below = 0, rest_above = 0;
  double clock_below = 0, clock_above = 0;
};

// What one cause adds to a step beside the kernels and collectives that benchmarks measure: the difference to the step
// without it. Causes overlap, so they need not sum to anything.
struct Addition {
  std::string name;  // "clock under load"
  std::string note;  // how much of it was assumed
  Seconds seconds;
};

// Electricity, at most: see energy.h.
struct Energy {
  Joules step, trillion_tokens;
};

// How much longer a plan takes than another one for as many tokens.
struct StepDifference {
  Seconds from;               // the other plan's step
  double steps = 1;           // so many steps train as many tokens as one of the other plan
  Seconds longer, low, high;  // these steps less `from`, with a 90 % interval
  // The ratio of both less 1, with its 90 % interval. Where the two forecasts err by themselves, this is not the
  // interval of the difference over `from`: the other step may be longer than `from`, too.
  double share = 0, share_low = 0, share_high = 0;
  Breakdown parts;  // of `longer`
  std::int64_t from_gpus = 0, gpus = 0;
};
struct Against {
  std::string report;  // its file
  StepDifference difference;
};

struct Warning {
  std::string code;  // "extrapolated", "tp_across_nodes", ...
  std::string message;
  bool minor = false;  // nothing to doubt the answer for: people are told beside it
};

// How the clock went over microbatches that repeat.
struct Folding {
  std::int64_t period = 0;  // microbatches after which the step repeats itself; 0: it was not folded
  std::int64_t copies = 0;  // periods that were not timed one by one
};

struct Report {
  Scenario scenario;
  std::int64_t ranks = 0, microbatches = 0;
  std::size_t nodes = 0, works = 0;  // of the step, written out
  Folding folding;
  Seconds step, step_low, step_high;  // 90 % interval
  IntervalParts interval;
  double tokens_per_second = 0;
  double model_flops_per_second = 0;  // of a GPU
  // Of the dense peak for the training's number format. mfu, hfu: attention scores in full, as Narayanan et al. 2021
  // (arXiv 2104.04473) count them; mfu_causal, hfu_causal: without the scores that the mask hides (StepFlops::causal).
  // FlashAttention (Dao 2023, arXiv 2307.08691, s. 4.1) and since March 2025 Megatron-LM (training.py,
  // num_floating_point_operations) count half of all.
  double mfu = 0, hfu = 0, mfu_causal = 0, hfu_causal = 0;
  std::optional<Energy> energy;  // where the GPU's board power is known
  MemoryBudget memory;
  std::vector<StageMemoryDetail> memory_detail;  // by stage, where `simulate` was asked
  Bytes host_memory;                             // what is offloaded of a GPU: the most of a stage
  bool fits = false;
  std::optional<MemoryRemedy> remedy;  // where `simulate` was asked, it does not fit, and a plan tried does
  Breakdown breakdown;
  std::vector<Hotspot> critical_path;             // all of it, longest first
  std::vector<Improvement> improvements;          // changes, then limits; each largest first
  std::vector<Addition> additions;                // where they were asked for
  std::vector<Sensitivity> sensitivity, what_if;  // the same
  std::optional<Against> against;                 // the report that flags changed (`--from`)
  std::map<std::string, std::string> asked;       // beside the work, for `--from`: flags without dashes, their texts
  std::vector<Warning> warnings;
};

// The path by name and kind, longest first; equal times by name.
std::vector<Hotspot> hotspots(std::span<const PathEntry> path);
// What is shown of these: the first `most`, and all that is extrapolated.
std::vector<Hotspot> shown_hotspots(std::span<const Hotspot> all, std::size_t most);

// The 90 % interval of the path's length. Forecasts of one operator family err together (their deviations add up);
// families err independently (the sums add in quadrature).
Interval path_interval(std::span<const PathEntry> path);

// One JSON object, as the interface promises it, ending in a newline.
std::string to_json(const Report& report);

}  // namespace ns_dist
