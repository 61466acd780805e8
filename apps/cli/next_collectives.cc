#include "next_collectives.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "ns_dist/network_model.h"
#include "ns_dist/planner.h"

namespace ns_dist::cli {
namespace {

std::int64_t ranks_of_first_node(const RankGroup& group, std::int64_t node) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < group.size(); ++i) count += group.at(i) / node == group.first / node ? 1 : 0;
  return count;
}

bool is_of_group(const CalibrationCurve& curve, const CollectiveRow& row) {
  return curve.kind == row.kind && curve.ranks == row.ranks && curve.ranks_per_node == row.gpus_per_node;
}

}  // namespace

Result<CollectiveAdvice> next_collectives(std::span<const Scenario> steps, const NetworkCalibration& curves,
                                          std::size_t most) {
  std::map<std::tuple<CollectiveKind, std::int64_t, std::int64_t, int>, NextCollective> alike;
  for (const Scenario& step : steps) {
    NS_TRY(const StepProgram program, plan_program(step.model, step.plan, step.training));
    NetworkModelOptions options;
    options.calibration = std::make_shared<const NetworkCalibration>(before_builtin(curves));
    NS_TRY(const auto model, make_network_model(step.cluster, options));
    const std::vector<std::uint64_t> runs = program.run_counts();
    std::vector<NextCollective> uses;
    double all = 0;
    for (std::size_t w = 0; w < program.works.size(); ++w) {
      const auto* work = std::get_if<Collective>(&program.works[w].work);
      if (work == nullptr || work->kind == CollectiveKind::kBarrier) continue;
      NS_TRY(const Forecast forecast, model->forecast(*work));
      CollectiveRow row;
      row.cluster = step.cluster.id, row.kind = work->kind, row.size = work->size, row.ranks = work->group.size();
      row.gpus_per_node = ranks_of_first_node(work->group, step.cluster.gpus_per_node());
      if (row.gpus_per_node < 1 || row.ranks % row.gpus_per_node != 0) continue;  // no row of a table
      uses.push_back(
          {row, static_cast<double>(runs[w]) * (forecast.latency / units::s), forecast.high / forecast.latency - 1});
      all += uses.back().share;
    }
    for (const NextCollective& use : uses) {
      const int octave = static_cast<int>(std::floor(std::log2(use.row.size / units::B)));
      NextCollective& known = alike[{use.row.kind, use.row.ranks, use.row.gpus_per_node, octave}];
      const double share = use.share / all / static_cast<double>(steps.size());
      known.interval = (known.interval * known.share + use.interval * share) / (known.share + share);
      known.share += share;
      if (!(use.row.size < known.row.size)) known.row = use.row;
    }
  }
  CollectiveAdvice advice;
  for (auto& [key, use] : alike) {
    advice.interval += use.share * use.interval;
    bool is_measured = false;
    for (const CalibrationCurve& curve : curves.curves) {
      if (!is_of_group(curve, use.row)) continue;
      use.has_curve = true;
      is_measured = is_measured || (use.row.size >= curve.least && use.row.size <= curve.most);
    }
    if (!is_measured) advice.rows.push_back(use);
  }
  std::stable_sort(advice.rows.begin(), advice.rows.end(), [](const NextCollective& a, const NextCollective& b) {
    return a.share * a.interval > b.share * b.interval;
  });
  if (advice.rows.size() > most) advice.rows.resize(most);
  return advice;
}

}  // namespace ns_dist::cli
