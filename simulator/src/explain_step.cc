#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <numeric>
#include <string_view>
#include <variant>
#include <vector>

#include "costs.h"
#include "ns_dist/host_launches.h"
#include "ns_dist/internal/with_commas.h"
#include "ns_dist/training_clock.h"
#include "step_times.h"

namespace ns_dist {
namespace {

// Leaves out of every kernel's time what one cause adds to it.
using Latency = std::function<Seconds(const WorkItem&, const Forecast&)>;

// Works with these beginnings of names, but for the sums over replicas.
Latency without(std::initializer_list<std::string_view> prefixes) {
  return [names = std::vector<std::string_view>(prefixes)](const WorkItem& item, const Forecast& forecast) {
    const bool named = std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return std::string_view(item.name).starts_with(name);
    });
    return named && item.category != Category::kDataParallel ? Seconds() : forecast.latency;
  };
}

// What most of the critical path is bound by.
Bound bound_of(const std::vector<PathEntry>& path) {
  std::map<Bound, Seconds> seconds;
  for (const PathEntry& entry : path) seconds[entry.forecast.bound] += entry.seconds;
  const auto longest = std::max_element(seconds.begin(), seconds.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  return longest == seconds.end() ? Bound::kCompute : longest->first;
}

// What each further expert of a grouped product adds to its launch, as text.
std::string experts_launched(const Scenario& scenario) {
  if (!scenario.model.moe || scenario.plan.expert_products == ExpertProducts::kKernel) return {};
  return fmt::format(", {:.3g} us for each further expert", scenario.host.expert_launch_cost / units::us);
}

std::string as_long(double times) {
  const std::string digits = fmt::format("{:.3g}", times);
  return digits == "1" ? "as long" : digits + " times as long";
}

}  // namespace

std::vector<Addition> additions(const Scenario& scenario, const Prediction& prediction, const Session& session) {
  const std::int64_t ranks = prediction.program.mesh.ranks();
  const Host& host = scenario.host;
  // Steps are compared by the clock without sharing, which is fast.
  const Scenario alone = without_sharing(scenario);
  const auto step = [&](const Latency& latency) {
    return step_with(prediction, alone, session, latency).value_or(prediction.step);
  };
  const Seconds as_it_is = step(without({}));
  // What changes how long hosts wait is forecast anew.
  const Seconds unshared = step_time(alone, session).value_or(as_it_is);
  const double imbalance = busiest_over_mean(scenario.model, scenario.plan);
  std::vector<Addition> found;
  const auto add = [&](std::string name, std::string note, const Latency& latency) {
    found.push_back({std::move(name), std::move(note), max(Seconds(), as_it_is - step(latency))});  // clocks round
  };
  using Constants = std::initializer_list<double TrainingConstants::*>;
  const auto add_constant = [&](std::string name, std::string note, Constants constants, double none) {
    Scenario benchmark = alone;
    for (const auto constant : constants) benchmark.constants.*constant = none;
    const Seconds without = step_time(benchmark, session).value_or(unshared);
    found.push_back({std::move(name), std::move(note), max(Seconds(), unshared - without)});
  };
  if (session.made_its_models()) {
    const TrainingClock clock = training_clock(scenario, ranks);
    const Operator product{Gemm{}, product_type(scenario.training.precision)};
    const double load = clock.load_on(product);
    add_constant("clock under load",
                 fmt::format("products take {} as {}", as_long(load),
                             clock.calibrated.of(product) > 0 ? "measured on this GPU" : "in a benchmark"),
                 {&TrainingConstants::calibrated, &TrainingConstants::exponent}, 0);
    add_constant("slowest GPU",
                 fmt::format("of {}: products take {} as on the mean one", with_commas(ranks), as_long(clock.slowest)),
                 {&TrainingConstants::deviation}, 0);
    if (scenario.model.moe) {
      add_constant("experts",
                   fmt::format("their products take {} as in a benchmark of even groups{}", as_long(clock.experts),
                               imbalance > 1 ? ", or what the busiest rank's take" : ""),
                   {&TrainingConstants::experts, &TrainingConstants::experts_alone}, 1);
    }
  }
  if (scenario.model.moe && imbalance > 1) {
    Scenario even = alone;
    even.plan.expert_imbalance = {};
    found.push_back({"busiest experts",
                     fmt::format("ranks wait for the one with {:g} times the mean's tokens", imbalance),
                     unshared - step_time(even, session).value_or(unshared)});
  }
  add("host launches",
      host.cuda_graphs.step
          ? std::string("none with CUDA graphs")
          : fmt::format("{:.3g} us each{}{}", host.launch() / units::us, experts_launched(scenario),
                        host.blocking_launches ? ", and each blocks" : ", hidden where kernels take longer"),
      without({kHostLaunches}));
  if (host.empty_cache) {
    add("memory mapping", "activations are mapped anew, hidden unless memory is short", without({"host.memory"}));
  }
  // At least nothing: one of the clocks rounds.
  found.push_back({"shared links and SMs", "kernels and collectives that run at the same time",
                   max(Seconds(), prediction.step - unshared)});
  if (scenario.plan.pp > 1) {
    const std::vector<double> stages = seconds_alone(prediction.program, prediction.costs, [](const WorkItem& item) {
      return std::holds_alternative<Operator>(item.work);
    });
    const double longest = *std::max_element(stages.begin(), stages.end());
    const double mean = std::accumulate(stages.begin(), stages.end(), 0.0) / static_cast<double>(stages.size());
    found.push_back({"unequal stages", "of the bubble: others wait for the stage whose kernels take longest",
                     (longest - mean) * units::s});
  }
  add("embedding and loss", "of the first and the last stage", without({"embedding", "loss."}));
  // Its part on the host, too, whose works have other names.
  add("optimizer", "with the gradient norm, clipping and clearing of gradients",
      without({"optimizer.", "gradients.scale", "offload.gradients", "offload.optimizer", "offload.weights"}));
  return found;
}

Explanation explain(const Scenario& scenario, const Prediction& prediction, const Session& session) {
  Report all = report(scenario, prediction, {});
  Explanation explanation;
  explanation.subject =
      fmt::format("a step of {} on {} x {}", scenario.model.name, with_commas(all.ranks), scenario.cluster.gpu.name);
  Forecast& forecast = explanation.forecast;
  forecast.latency = all.step;
  forecast.low = all.step_low;
  forecast.high = all.step_high;
  forecast.floor = step_with(prediction, scenario, session, [](const WorkItem&, const Forecast& each) {
                     return each.floor;
                   }).value_or(all.step);
  forecast.utilization = forecast.floor / forecast.latency;
  forecast.bound = bound_of(prediction.critical_path);
  forecast.method = "critical path";
  const auto add = [&](std::string name, std::string value, std::string note) {
    explanation.steps.push_back({std::move(name), std::move(value), std::move(note)});
  };
  if (!all.fits) {
    const Bytes capacity = scenario.cluster.gpu.memory;
    add("memory", "does not fit",
        fmt::format("{:.1f} GiB are needed, a GPU has {:.1f}: the step is that of one with enough",
                    all.memory.needed() / units::GiB, capacity / units::GiB));
  }
  const auto share = [&](Seconds seconds) { return fmt::format("{:.1f} %", 100 * (seconds / all.step)); };
  for (Addition& addition : additions(scenario, prediction, session)) {
    add(std::move(addition.name), share(addition.seconds), std::move(addition.note));
  }
  const auto both = [](double below, double above) {
    return fmt::format("-{:.1f} +{:.1f} %", 100 * below, 100 * above);
  };
  add("interval, forecasts", both(all.interval.forecasts_below, all.interval.forecasts_above),
      "of the kernels, collectives, messages and launches on the critical path");
  add("interval, rest", both(all.interval.rest_below, all.interval.rest_above),
      fmt::format("what they leave unexplained in published steps of {}", all.interval.situation));
  if (all.interval.clock_above > 0) {
    add("interval, clock", both(all.interval.clock_below, all.interval.clock_above),
        "under load: the slowdown is not known for such a GPU");
  }
  constexpr std::size_t kMost = 20;
  const std::vector<Hotspot> shown = shown_hotspots(all.critical_path, kMost);
  Seconds others;
  for (const Hotspot& hotspot : all.critical_path) others += hotspot.seconds;
  for (const Hotspot& hotspot : shown) {
    others -= hotspot.seconds;
    add(hotspot.name, share(hotspot.seconds),
        fmt::format("on the critical path: {} {} of {}{}", with_commas(hotspot.count), hotspot.kind,
                    duration_text(hotspot.seconds / static_cast<double>(hotspot.count)),
                    hotspot.extrapolated ? ", extrapolated" : ""));
  }
  if (shown.size() < all.critical_path.size()) {
    add("others", share(others), fmt::format("on the critical path: {} more", all.critical_path.size() - shown.size()));
  }
  return explanation;
}

}  // namespace ns_dist
