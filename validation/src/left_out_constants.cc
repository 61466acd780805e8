#include "left_out_constants.h"

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {
namespace {

constexpr std::array kExponents = {0.16, 0.2, 0.24, 0.28, 0.32};
constexpr std::array kDeviations = {0.0, 0.005, 0.0075, 0.01};
constexpr std::array kExperts = {1.0, 1.15, 1.3, 1.45};
constexpr std::array kLaunches = {0.5, 1.0, 1.5, 2.0};  // hosts whose launches take so many times as long
constexpr std::array kHosts = {0.0, 0.2};

struct Constants {
  TrainingConstants training;
  double launches = 1;
};

std::vector<Constants> grid() {
  std::vector<Constants> all;
  for (const double exponent : kExponents) {
    for (const double deviation : kDeviations) {
      for (const double experts : kExperts) {
        for (const double launches : kLaunches) {
          for (const double hosts : kHosts) {
            TrainingConstants training;
            training.exponent = exponent, training.deviation = deviation, training.experts = experts;
            training.hosts = hosts;
            all.push_back({training, launches});
          }
        }
      }
    }
  }
  return all;
}

// |forecast / measured - 1| and the same with its sign, means over the runs of one publication.
struct MeanError {
  double size = 0, bias = 0;
};

}  // namespace

Result<SuiteTable> left_out_constants(std::span<const JudgedRun> runs, const Catalog& catalog,
                                      const std::function<void(double)>& progress) {
  const std::vector<Constants> points = grid();
  std::map<std::string, std::vector<MeanError>> publications;  // by point
  std::map<std::string, double> counts;
  for (const JudgedRun& judged : runs) ++counts[judged.run->publication];
  if (counts.size() < 2) return SuiteTable();
  double done = 0;
  for (const JudgedRun& judged : runs) {
    std::vector<MeanError>& errors = publications[judged.run->publication];
    errors.resize(points.size());
    NS_TRY(Scenario scenario, scenario_of(*judged.run, catalog));
    Sessions sessions;
    const Host host = scenario.host;
    NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
    std::map<std::array<double, 5>, double> known;  // by what the step depends on: many points of the grid share a step
    for (std::size_t p = 0; p < points.size(); ++p) {
      const auto& [training, launches] = points[p];
      scenario.constants = training;
      const TrainingClock clock = training_clock(scenario, ranks);
      const std::array key = {training_slowdown(scenario.cluster.gpu, training.exponent), clock.slowest,
                              scenario.model.moe ? clock.experts : 0, scenario.host.cuda_graphs.step ? 0 : launches,
                              scenario.host.cuda_graphs.step ? 0 : training.hosts};
      auto found = known.find(key);
      if (found == known.end()) {
        scenario.host = host.with_launches(launches);
        NS_TRY(const std::shared_ptr<const Session> session, sessions.of(scenario));
        NS_TRY(const Seconds step, step_time(scenario, *session));
        found = known.emplace(key, step / judged.measured - 1).first;
      }
      const double weight = 1 / counts[judged.run->publication];
      errors[p].size += weight * std::abs(found->second);
      errors[p].bias += weight * found->second;
    }
    if (progress) progress(++done / static_cast<double>(runs.size()));
  }
  SuiteTable table{"Constants found on the other publications, and the error with them",
                   "",
                   {{"left_out", "left out"},
                    {"exponent", "exponent", Figure::kNumber},
                    {"deviation", "deviation", Figure::kPercent},
                    {"experts", "experts", Figure::kNumber},
                    {"launches", "launches x", Figure::kNumber},
                    {"hosts", "hosts", Figure::kWholePercent},
                    {"mean", "mean", Figure::kPercent},
                    {"bias", "bias", Figure::kSignedPercent}}};
  double mean = 0, bias = 0;
  for (const auto& [title, own] : publications) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t p = 0; p < points.size(); ++p) {
      double sum = 0;
      for (const auto& [other, errors] : publications) sum += other == title ? 0 : errors[p].size;
      if (sum < least) {
        least = sum;
        best = p;
      }
    }
    const auto& [training, launches] = points[best];
    table.rows.push_back({title, training.exponent, training.deviation, training.experts, launches, training.hosts,
                          own[best].size, own[best].bias});
    mean += own[best].size / static_cast<double>(publications.size());
    bias += own[best].bias / static_cast<double>(publications.size());
  }
  table.rows.push_back({"each publication one vote", {}, {}, {}, {}, {}, mean, bias});
  return table;
}

}  // namespace ns_dist
