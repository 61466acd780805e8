#include "ns_dist/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ns_dist/error_figures.h"
#include "ns_dist/planner.h"
#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"

namespace ns_dist {
namespace {

std::string summary_line(const char* name, const ErrorFigures& figures) {
  return fmt::format("{:<22} {:>4} runs: mean {:5.1f} %, p90 {:5.1f} %, max {:5.1f} %, bias {:+5.1f} %\n", name,
                     figures.rows, 100 * figures.mean, 100 * figures.p90, 100 * figures.largest, 100 * figures.bias);
}

}  // namespace

Result<std::vector<RunCheck>> check_runs(std::span<const PublishedRuns> publications, const Catalog& catalog) {
  std::vector<RunCheck> checks;
  struct Utilisation {
    double sum = 0;
    int runs = 0;
  };
  std::map<std::pair<std::string, DType>, Utilisation> utilisations;
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
          static_cast<double>(ranks) * scenario.cluster.gpu.matrix_peak(scenario.training.dtype);
      at_peak.push_back(step_flops(scenario.model, scenario.plan, scenario.training).model / peak);
      keys.emplace_back(check.gpu, scenario.training.dtype);
      Utilisation& utilisation = utilisations[keys.back()];
      utilisation.sum += at_peak.back() / run.step;
      ++utilisation.runs;
      NS_TRY(const Session session, Session::make(scenario));
      const auto simulation = predict(scenario, session);
      if (simulation) {
        const Report answer = report(scenario, *simulation, {});
        check.forecast = answer.step;
        check.low = answer.step_low;
        check.high = answer.step_high;
      } else {
        check.unsupported = simulation.error().message;
      }
      checks.push_back(std::move(check));
    }
  }
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const Utilisation& utilisation = utilisations[keys[i]];
    checks[i].baseline = at_peak[i] / (utilisation.sum / utilisation.runs);
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
      "| run | GPU | measured s | forecast s | 90 % interval s | error | constant utilisation |\n"
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
  text += summary_line("constant utilisation", figures_of(baseline));
  text += fmt::format("measurement inside the 90 % interval: {} of {}\n", inside, ours.size());
  if (unsupported > 0) text += fmt::format("not forecast: {}\n", unsupported);
  return text;
}

}  // namespace ns_dist
