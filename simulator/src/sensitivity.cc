#include "ns_dist/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/memory.h"
#include "ns_dist/network_model.h"
#include "ns_dist/session.h"
#include "step_difference.h"
#include "step_times.h"

namespace ns_dist {
namespace {

struct Changed {
  Scenario scenario;
  double kernel_efficiency = 1;
};

bool flops(Changed& of, double factor) {
  Gpu& gpu = of.scenario.cluster.gpu;
  for (RateTable* rates : {&gpu.tensor, &gpu.vector}) {
    for (const DType dtype : kAllDTypes) (*rates)[dtype] = factor * (*rates)[dtype];
  }
  gpu.base_clock = factor * gpu.base_clock;
  gpu.boost_clock = factor * gpu.boost_clock;
  gpu.flop_energy /= factor;  // a faster clock alone would meet the limit of the board's power
  return true;
}

bool board_power(Changed& of, double factor) {
  of.scenario.cluster.gpu.board_power *= factor;
  return of.scenario.cluster.gpu.board_power > Watts();
}

bool memory_bandwidth(Changed& of, double factor) {
  of.scenario.cluster.gpu.memory_bandwidth *= factor;
  return true;
}

bool memory_size(Changed& of, double factor) {
  of.scenario.cluster.gpu.memory *= factor;
  return true;
}

bool inside(Changed& of, double factor) {
  auto& levels = of.scenario.cluster.levels;
  for (std::size_t i = 0; i < of.scenario.cluster.node_levels(); ++i) levels[i].fabric.bandwidth *= factor;
  return !levels.empty();
}

bool between(Changed& of, double factor) {
  auto& levels = of.scenario.cluster.levels;
  const auto first = levels.begin() + static_cast<std::ptrdiff_t>(of.scenario.cluster.node_levels());
  std::for_each(first, levels.end(), [&](FabricLevel& level) { level.fabric.bandwidth *= factor; });
  // One node has no links to another.
  return std::any_of(first, levels.end(), [](const FabricLevel& level) { return level.size > 1; });
}

bool latency(Changed& of, double factor) {
  for (FabricLevel& level : of.scenario.cluster.levels) level.fabric.latency *= factor;
  return !of.scenario.cluster.levels.empty();
}

bool launches(Changed& of, double factor) {
  of.scenario.host = of.scenario.host.with_launches(factor);
  return !of.scenario.host.cuda_graphs.step && of.scenario.host.launch_cost > Seconds();
}

bool efficiency(Changed& of, double factor) {
  of.kernel_efficiency *= factor;
  return true;
}

// Why a faster network may save less than it could; empty: nothing stands before it.
std::string port_of(const Changed& of) {
  if (rank_count(of.scenario.plan).value_or(0) <= of.scenario.cluster.gpus_per_node()) return "";
  const auto limit = pcie_limit(of.scenario.cluster);
  return limit ? fmt::format(" (PCIe port {})", to_text(*limit)) : "";
}

// The table: a line for each part.
struct Part {
  std::string_view id, alias, name;
  bool (*scale)(Changed&, double factor);  // returns whether the machine has the part
  bool less_is_better = false;
  std::string (*limit)(const Changed&) = nullptr;
  std::string name_of(const Changed& changed) const { return std::string(name) + (limit ? limit(changed) : ""); }
};
constexpr Part kParts[] = {
    {"flops", "clock", "clock and peak rates of the GPU", flops},
    {"board-power", "power", "board power of the GPU", board_power},
    {"memory-bandwidth", "hbm", "memory bandwidth of the GPU", memory_bandwidth},
    {"memory", "memory-size", "memory of the GPU", memory_size},
    {"intra-bandwidth", "intra", "bandwidth inside nodes", inside},
    {"inter-bandwidth", "inter", "bandwidth between nodes", between, false, port_of},
    {"latency", "link-latency", "latency of all links", latency, true},
    {"launch-cost", "launch", "launches of the host", launches, true},
    {"kernel-efficiency", "kernels", "efficiency of kernels", efficiency},
};

const Part* find(std::string_view any_case) {
  const std::string name = lower_case(any_case);
  const auto found = std::find_if(std::begin(kParts), std::end(kParts),
                                  [&](const Part& part) { return part.id == name || part.alias == name; });
  return found == std::end(kParts) ? nullptr : found;
}

struct Timed {
  Seconds step;
  bool fits = true;
  std::optional<Prediction> prediction = {};  // where kernels are as efficient as forecast
};
Result<Timed> timed(const Changed& changed) {
  const Scenario& scenario = changed.scenario;
  NS_TRY(const Session session, Session::make(scenario));
  NS_TRY(const Seconds step, step_time(scenario, session, changed.kernel_efficiency));
  NS_TRY(const MemoryBudget memory, memory_budget(scenario.model, scenario.plan, scenario.training, session.plans()));
  return Timed{step, memory.fits(scenario.cluster.gpu.memory)};
}

// The same with where the time goes, of which a difference has an interval.
Result<Timed> predicted(const Changed& changed) {
  if (changed.kernel_efficiency != 1) return timed(changed);
  const Scenario& scenario = changed.scenario;
  NS_TRY(const Session session, Session::make(scenario));
  NS_TRY(Prediction prediction, predict(scenario, session));
  const bool fits = prediction.memory.fits(scenario.cluster.gpu.memory);
  const Seconds step = prediction.step;
  return Timed{step, fits, std::move(prediction)};
}

Sensitivity sensitivity(std::string part, std::string name, double factor, const Timed& before, const Timed& after) {
  return {std::move(part), std::move(name), factor, after.step, after.step / before.step - 1, after.fits};
}

Error bad_change(std::string message, std::string expected, std::string hint = "") {
  return {ErrorCode::kUsage, std::move(message), "--what-if", std::move(expected), std::move(hint)};
}

}  // namespace

std::vector<std::string_view> part_names() {
  std::vector<std::string_view> names;
  for (const Part& part : kParts) names.push_back(part.id);
  return names;
}

Result<std::vector<PartChange>> read_part_changes(std::string_view text) {
  constexpr std::string_view kHint = "write, for example, --what-if \"inter-bandwidth x2, launch-cost x0.5\"";
  std::vector<PartChange> changes;
  for (const std::string_view piece : split_at(text, ",")) {
    const std::string_view item = trimmed(piece);
    const std::size_t blank = item.find(' ');
    const std::string_view name = item.substr(0, blank);
    const Part* part = find(name);
    if (part == nullptr) {
      const std::vector<std::string_view> names = part_names();
      const std::string near = nearest_name(name, {names.begin(), names.end()});
      return fail(bad_change(
          fmt::format("\"{}\" is no part of a machine", name), fmt::format("one of {}", fmt::join(names, ", ")),
          near.empty() ? std::string(kHint) : fmt::format("did you mean --what-if \"{} x2\"?", near)));
    }
    const std::string_view factor = blank == std::string_view::npos ? "" : trimmed(item.substr(blank));
    const bool has_x = factor.starts_with('x');
    const auto number = read_positive_number(has_x ? factor.substr(1) : factor, kMostFactor);
    if (!has_x || !number || *number < kLeastFactor) {
      return fail(bad_change(fmt::format("\"{}\" is no change", item),
                             fmt::format("a part and a factor from x{} to x{}", kLeastFactor, kMostFactor),
                             std::string(kHint)));
    }
    if (std::any_of(changes.begin(), changes.end(), [&](const PartChange& each) { return each.part == part->id; })) {
      return fail(bad_change(fmt::format("{} is there twice", part->id), "each part once"));
    }
    changes.push_back({std::string(part->id), *number});
  }
  return changes;
}

Result<std::vector<Sensitivity>> sensitivities(const Scenario& scenario, double share) {
  if (!(share > -1) || !std::isfinite(share)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("a share of {}", share), "", "above -1"});
  }
  NS_TRY(const Timed before, timed({scenario}));
  std::vector<Sensitivity> found;
  for (const Part& part : kParts) {
    Changed changed{scenario};
    const double factor = part.less_is_better ? 1 / (1 + share) : 1 + share;
    if (!part.scale(changed, factor)) continue;
    NS_TRY(const Timed after, timed(changed));
    found.push_back(sensitivity(std::string(part.id), part.name_of(changed), factor, before, after));
  }
  std::stable_sort(found.begin(), found.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::fabs(a.change) > std::fabs(b.change);
  });
  return found;
}

Result<std::vector<Sensitivity>> what_if(const Scenario& scenario, std::span<const PartChange> changes) {
  NS_TRY(const Timed before, predicted({scenario}));
  // A step with better parts is no longer, and one with worse ones no shorter; parts twice as good save at most half.
  // `least`, `most`: of how much better.
  const auto row = [&](std::string part, std::string name, double factor, const Timed& after, double least,
                       double most) {
    Sensitivity made = sensitivity(std::move(part), std::move(name), factor, before, after);
    if (after.prediction) {
      const Interval longer = machine_difference(scenario, *before.prediction, *after.prediction);
      const double low = -most_saved(before.step, before.step - after.step, -longer.low);
      const double high = longer.high / before.step;
      made.range = {std::max(low, std::min(1 / std::max(most, 1.0) - 1, made.change)),
                    std::min(high, std::max(1 / std::min(least, 1.0) - 1, made.change))};
    }
    return made;
  };
  double least = 1, most = 1;
  Changed all{scenario};
  int present = 0;  // in the machine
  std::vector<Sensitivity> found;
  for (const PartChange& change : changes) {
    const Part* part = find(change.part);
    NS_EXPECTS(part != nullptr);
    Changed changed{scenario};
    std::optional<Timed> after;  // none: as before
    if (part->scale(changed, change.factor)) {
      part->scale(all, change.factor);
      NS_TRY(after, predicted(changed));
      ++present;
    }
    const double better = part->less_is_better ? 1 / change.factor : change.factor;
    least = std::min(least, better), most = std::max(most, better);
    found.push_back(row(change.part, part->name_of(changed), change.factor, after ? *after : before, better, better));
  }
  if (present < 2) return found;
  NS_TRY(const Timed after, predicted(all));
  found.push_back(row("all", "all of these", 1, after, least, most));
  return found;
}

}  // namespace ns_dist
