#include "ns_dist/run_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ns_dist/error_figures.h"
#include "ns_dist/planner.h"
#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "published_runs.h"

namespace ns_dist {
namespace {

std::string summary_line(const char* name, const ErrorFigures& figures) {
  return fmt::format("{:<22} {:>4} runs: mean {:5.1f} %, p90 {:5.1f} %, max {:5.1f} %, bias {:+5.1f} %\n", name,
                     figures.rows, 100 * figures.mean, 100 * figures.p90, 100 * figures.largest, 100 * figures.bias);
}

}  // namespace

Result<std::vector<RunCheck>> check_runs(std::span<const PublishedRuns> publications, const Catalog& catalog) {
  std::vector<RunCheck> checks;
  struct Utilization {
    double sum = 0;
    int runs = 0;
  };
  std::map<std::pair<std::string, DType>, Utilization> utilizations;
  std::vector<Seconds> at_peak;  // model FLOPs at the dense peak of all GPUs
  std::vector<std::pair<std::string, DType>> keys;
  for (const PublishedRuns& publication : publications) {
    for (const PublishedRun& run : publication.runs) {
      NS_TRY(const Scenario scenario, resolve(spec_of(run), catalog));
      NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
      RunCheck check;
      check.publication = publication.id;
      check.id = run.id;
      check.gpu = scenario.cluster.gpu.id;
      check.measured = run.step;
      const FlopsPerSecond peak =
          static_cast<double>(ranks) * scenario.cluster.gpu.matrix_peak(product_type(scenario.training.precision));
      at_peak.push_back(step_flops(scenario.model, scenario.plan, scenario.training).model / peak);
      keys.emplace_back(check.gpu, product_type(scenario.training.precision));
      Utilization& utilization = utilizations[keys.back()];
      utilization.sum += at_peak.back() / run.step;
      ++utilization.runs;
      NS_TRY(const Session session, Session::make(scenario));
      if (const auto prediction = predict(scenario, session)) {
        const Report answer = report(scenario, *prediction, {});
        check.forecast = answer.step;
        check.low = answer.step_low;
        check.high = answer.step_high;
      } else {
        check.unsupported = prediction.error().message;
      }
      checks.push_back(std::move(check));
    }
  }
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const Utilization& utilization = utilizations[keys[i]];
    checks[i].baseline = at_peak[i] / (utilization.sum / utilization.runs);
  }
  return checks;
}

std::string to_markdown(std::span<const RunCheck> checks) {
  std::vector<const RunCheck*> rows;
  std::vector<double> ours, baseline;
  std::size_t inside = 0, unsupported = 0;
  for (const RunCheck& check : checks) {
    rows.push_back(&check);
    if (!check.unsupported.empty()) {
      ++unsupported;
      continue;
    }
    ours.push_back(check.error());
    baseline.push_back(check.baseline_error());
    if (check.low <= check.measured && check.measured <= check.high) ++inside;
  }
  std::stable_sort(rows.begin(), rows.end(), [](const RunCheck* a, const RunCheck* b) {
    if (a->unsupported.empty() != b->unsupported.empty()) return a->unsupported.empty();
    return a->unsupported.empty() && std::abs(a->error()) > std::abs(b->error());
  });
  std::string text =
      "| run | GPU | measured s | forecast s | 90 % interval s | error | constant utilization |\n"
      "|---|---|---:|---:|---:|---:|---:|\n";
  for (const RunCheck* row : rows) {
    const std::string run = row->publication + ": " + row->id;
    if (!row->unsupported.empty()) {
      text += fmt::format("| {} | {} | {:.3f} | - | - | {} | - |\n", run, row->gpu, row->measured / units::s,
                          row->unsupported);
      continue;
    }
    text += fmt::format("| {} | {} | {:.3f} | {:.3f} | {:.2f} to {:.2f} | {:+.1f} % | {:+.1f} % |\n", run, row->gpu,
                        row->measured / units::s, row->forecast / units::s, row->low / units::s, row->high / units::s,
                        100 * row->error(), 100 * row->baseline_error());
  }
  text += '\n';
  text += summary_line("ns-dist", figures_of(ours));
  text += summary_line("constant utilization", figures_of(baseline));
  text += fmt::format("measurement inside the 90 % interval: {} of {}\n", inside, ours.size());
  if (unsupported > 0) text += fmt::format("not forecast: {}\n", unsupported);
  return text;
}

namespace {

// The rows of one configuration: the mean of their measurements and one forecast.
struct Vote {
  const CollectedRun* run = nullptr;
  std::string gpu;
  DType dtype = DType::kBf16;
  Seconds measured, forecast, low, high, at_peak;
  double baseline_error = 0;
  double error() const { return forecast / measured - 1; }
  bool inside() const { return low <= measured && measured <= high; }
};

struct Errors {
  std::vector<double> ours, baseline;
};

Result<Vote> forecast_of(const std::vector<const CollectedRun*>& rows, const Catalog& catalog) {
  Vote vote;
  vote.run = rows.front();
  for (const CollectedRun* row : rows) vote.measured += row->measured / static_cast<double>(rows.size());
  NS_TRY(Scenario base, resolve(ScenarioSpec{}, catalog));
  base.model = vote.run->model;
  NS_TRY(const Scenario scenario, resolve(vote.run->spec, catalog, &base));
  NS_TRY(const Session session, Session::make(scenario));
  NS_TRY(const Prediction prediction, predict(scenario, session));
  const Report report = ns_dist::report(scenario, prediction, {});
  vote.gpu = scenario.cluster.gpu.id;
  vote.dtype = product_type(scenario.training.precision);
  vote.forecast = report.step;
  vote.low = report.step_low;
  vote.high = report.step_high;
  vote.at_peak =
      step_flops(scenario.model, scenario.plan, scenario.training).model /
      (static_cast<double>(report.ranks) * scenario.cluster.gpu.matrix_peak(product_type(scenario.training.precision)));
  return vote;
}

// Errors under the mean utilization of all votes of the same GPU and number format.
void add_baselines(std::vector<Vote>& votes) {
  std::map<std::pair<std::string, DType>, std::vector<double>> utilizations;
  for (const Vote& vote : votes) utilizations[{vote.gpu, vote.dtype}].push_back(vote.at_peak / vote.measured);
  for (Vote& vote : votes) {
    const std::vector<double>& all = utilizations[{vote.gpu, vote.dtype}];
    double sum = 0;
    for (const double utilization : all) sum += utilization;
    vote.baseline_error = vote.at_peak / (sum / static_cast<double>(all.size())) / vote.measured - 1;
  }
}

// The ratio of measured to forecast step below which `share` of the publications' votes lie.
double step_quantile(const std::map<std::string, Errors>& by_publication, double share) {
  std::vector<std::pair<double, double>> ratios;  // ratio, weight
  for (const auto& [title, errors] : by_publication) {
    for (const double error : errors.ours) {
      ratios.emplace_back(1 / (1 + error),
                          1 / static_cast<double>(errors.ours.size()) / static_cast<double>(by_publication.size()));
    }
  }
  std::sort(ratios.begin(), ratios.end());
  double sum = 0;
  for (const auto& [ratio, weight] : ratios) {
    if ((sum += weight) >= share) return ratio;
  }
  return ratios.empty() ? 1.0 : ratios.back().first;
}

std::string error_line(const std::string& name, const Errors& errors) {
  const ErrorFigures ours = figures_of(errors.ours), constant = figures_of(errors.baseline);
  return fmt::format("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:+.1f} | {:.1f} | {:.1f} | {:.1f} |\n", name, ours.rows,
                     100 * ours.mean, 100 * ours.p90, 100 * ours.largest, 100 * ours.bias, 100 * constant.mean,
                     100 * constant.p90, 100 * constant.largest);
}

std::string collection_markdown(std::vector<Vote> votes, const std::map<std::string, int>& reasons) {
  add_baselines(votes);
  std::stable_sort(votes.begin(), votes.end(),
                   [](const Vote& a, const Vote& b) { return std::abs(a.error()) > std::abs(b.error()); });
  std::string text =
      "| run | GPU | measured s | forecast s | 90 % interval s | error | constant utilization |\n"
      "|---|---|---:|---:|---:|---:|---:|\n";
  std::map<std::string, Errors> by_publication;
  Errors all;
  std::size_t inside = 0;
  for (const Vote& vote : votes) {
    text += fmt::format("| {} | {} | {:.3f} | {:.3f} | {:.2f} to {:.2f} | {:+.1f} % | {:+.1f} % |\n", vote.run->id,
                        vote.gpu, vote.measured / units::s, vote.forecast / units::s, vote.low / units::s,
                        vote.high / units::s, 100 * vote.error(), 100 * vote.baseline_error);
    if (vote.inside()) ++inside;
    for (Errors* errors : {&by_publication[vote.run->publication], &all}) {
      errors->ours.push_back(vote.error());
      errors->baseline.push_back(vote.baseline_error);
    }
  }
  std::vector<std::pair<std::string, const Errors*>> worst_first;
  for (const auto& [title, errors] : by_publication) worst_first.emplace_back(title, &errors);
  std::stable_sort(worst_first.begin(), worst_first.end(), [](const auto& a, const auto& b) {
    return figures_of(a.second->ours).mean > figures_of(b.second->ours).mean;
  });
  text +=
      "\n| publication | runs | mean % | p90 % | max % | bias % | constant utilization: mean % | p90 % | max % |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const auto& [title, errors] : worst_first) text += error_line(title, *errors);
  text += error_line("all", all);
  text += fmt::format("\nmeasurement inside the 90 % interval: {} of {}\n", inside, votes.size());
  text += fmt::format("measured over forecast, 5th and 95th percentile, each publication one vote: {:.3f} {:.3f}\n",
                      step_quantile(by_publication, 0.05), step_quantile(by_publication, 0.95));
  for (const auto& [reason, count] : reasons) text += fmt::format("not forecast, {}: {}\n", count, reason);
  return text;
}

}  // namespace

Result<RunSuite> check_run_collection(const std::filesystem::path& file, const Catalog& catalog,
                                      const std::function<void(double)>& progress) {
  RunSuite suite;
  NS_TRY(const std::vector<CollectedRun> runs, read_run_collection(file, catalog, suite.mistakes));
  suite.rows = runs.size() + suite.mistakes.size();
  std::map<std::string, int> reasons;  // why there is no forecast, and of how many rows or configurations
  std::map<std::string, std::vector<const CollectedRun*>> by_key;
  for (const CollectedRun& run : runs) {
    if (run.unsupported.empty()) {
      by_key[run.key].push_back(&run);
    } else {
      ++reasons[run.unsupported];
    }
  }
  std::vector<Vote> votes;
  std::size_t done = 0;
  for (const auto& [key, rows] : by_key) {
    Result<Vote> vote = forecast_of(rows, catalog);
    if (vote) {
      votes.push_back(*std::move(vote));
    } else {
      constexpr std::size_t kLongestReason = 60;  // beyond it, messages differ in numbers only
      ++reasons[vote.error().message.substr(0, kLongestReason)];
    }
    ++done;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(by_key.size()));
  }
  suite.markdown = collection_markdown(std::move(votes), reasons);
  return suite;
}

}  // namespace ns_dist
