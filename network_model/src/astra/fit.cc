#include <algorithm>
#include <cmath>
#include <vector>

#include "ns_dist/astra_formulas.h"

namespace ns_dist {
namespace {

struct Goal {
  Collective collective;
  double ns = 0, weight = 0;  // weight: its time in the step
};

// Logarithms of bandwidth and latency of each dimension, as changes of what they were.
AstraSystem changed(AstraSystem system, const std::vector<double>& logs) {
  for (std::size_t i = 0; i < system.dimensions.size(); ++i) {
    system.dimensions[i].bandwidth_gib *= std::exp(logs[2 * i]);
    system.dimensions[i].latency_ns *= std::exp(logs[2 * i + 1]);
  }
  return system;
}

class Fit {
 public:
  Fit(const AstraSystem& system, std::vector<Goal> goals, std::int64_t node)
      : system_(system), goals_(std::move(goals)), node_(node) {}

  double loss(const std::vector<double>& logs) const {
    double sum = 0;
    visit(logs, [&](const Goal& goal, double ns) {
      const double log_ratio = std::log(std::max(ns, 1.0) / goal.ns);
      sum += goal.weight * log_ratio * log_ratio;
    });
    return sum;
  }

  // A compass search: steps along each axis, and along the last success, halved where none helps. Answers are whole
  // nanoseconds and largest values of several, so there is no derivative to follow.
  std::vector<double> run() const {
    constexpr int kMostLosses = 4000;
    constexpr double kMostChange = 6.9;  // ln 1,000
    std::vector<double> at(2 * system_.dimensions.size(), 0);
    double best = loss(at);
    int left = kMostLosses;
    const auto better = [&](std::vector<double> to) {
      for (double& x : to) x = std::clamp(x, -kMostChange, kMostChange);
      --left;
      const double now = loss(to);
      // Less than a hundred millionth is no reason to move what the targets do not tell.
      if (!(now < best * (1 - 1e-8))) return false;
      best = now;
      at = std::move(to);
      return true;
    };
    for (double step = 0.5; step > 1e-5 && left > 0;) {
      const std::vector<double> from = at;
      for (std::size_t i = 0; i < at.size(); ++i) {
        for (const double way : {step, -step}) {
          std::vector<double> to = at;
          to[i] += way;
          if (better(std::move(to))) break;
        }
      }
      if (at == from) {
        step /= 2;
        continue;
      }
      std::vector<double> on = at;
      for (std::size_t i = 0; i < on.size(); ++i) on[i] += at[i] - from[i];
      better(std::move(on));
    }
    return at;
  }

  template <class Visit>
  void visit(const std::vector<double>& logs, Visit&& visit) const {
    const auto network = AstraNetwork::make(changed(system_, logs));
    for (const Goal& goal : goals_) {
      visit(goal, network ? static_cast<double>(network->longest_ns(goal.collective, node_).value_or(0)) : 0);
    }
  }

  double error(const std::vector<double>& logs) const {
    double off = 0, all = 0;
    visit(logs, [&](const Goal& goal, double ns) {
      off += goal.weight * std::fabs(ns / goal.ns - 1);
      all += goal.weight;
    });
    return off / all;
  }

 private:
  const AstraSystem& system_;
  std::vector<Goal> goals_;
  std::int64_t node_;
};

}  // namespace

Result<AstraFit> fit_astra(const AstraSystem& system, std::span<const AstraTarget> targets, std::int64_t node) {
  NS_TRY(const AstraNetwork network, AstraNetwork::make(system));
  std::vector<Goal> goals;
  for (const AstraTarget& target : targets) {
    const double ns = target.time / units::ns;
    const Goal goal{target.collective, ns, ns * target.count};
    if (goal.ns > 0 && goal.weight > 0 && goal.collective.group.size() > 1 &&
        network.longest_ns(goal.collective, node)) {
      goals.push_back(goal);
    }
  }
  if (goals.empty()) {
    return fail({ErrorCode::kInvalidInput, "there is no collective or message to fit the network to", "network.yml",
                 "a plan whose ranks speak to each other", "leave the fit out"});
  }
  const Fit fit(system, std::move(goals), node);
  const std::vector<double> start(2 * system.dimensions.size(), 0), found = fit.run();
  const std::vector<double>& end = fit.error(found) < fit.error(start) ? found : start;
  AstraFit out{changed(system, end), fit.error(start), fit.error(end), 1};
  double answers = 0, times = 0;
  fit.visit(end, [&](const Goal& goal, double ns) {
    answers += goal.weight * ns / goal.ns;
    times += goal.weight;
  });
  out.total = answers / times;
  return out;
}

}  // namespace ns_dist
