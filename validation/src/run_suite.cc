#include "ns_dist/run_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "left_out_constants.h"
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

// Scenarios name fields ("plan/tp"); who wrote the run looks for its key ("runs.json#/runs/3/tp").
Error placed_in(const PublishedRun& run, Error error) {
  const bool is_file = error.where.find_first_of("#:") != std::string::npos;
  if (!is_file && !run.place.empty()) {
    const std::size_t key = error.where.rfind('/') + 1;  // 0 where there is no '/'
    error.where = run.place + (error.where.empty() ? "" : "/" + error.where.substr(key));
  }
  for (Error& more : error.also) more = placed_in(run, std::move(more));
  return error;
}

// The rows of one configuration: the mean of their measurements and one forecast.
struct Vote {
  const CollectedRun* run = nullptr;  // of a collection
  std::string gpu;
  DType dtype = DType::kBf16;
  Seconds measured, forecast, low, high;
  Seconds at_peak;   // model FLOPs at the dense peak of all GPUs
  Seconds baseline;  // under the mean utilization of all votes of the same GPU and number format
  Scenario scenario;
  Prediction prediction;  // step and critical path
  Bytes memory;           // forecast, of the fullest stage
  double filled = 0;      // share of the GPU's memory that tensors take by our count
  double error() const { return forecast / measured - 1; }
  double baseline_error() const { return baseline / measured - 1; }
  double ratio() const { return measured / forecast; }
  bool inside() const { return low <= measured && measured <= high; }
};

using Votes = std::vector<const Vote*>;

// Without its forecast.
Result<Vote> vote_of(Scenario scenario, Seconds measured) {
  NS_TRY(const std::int64_t ranks, rank_count(scenario.plan));
  Vote vote;
  vote.gpu = scenario.cluster.gpu.id;
  vote.dtype = product_type(scenario.training.precision);
  vote.measured = measured;
  vote.at_peak = step_flops(scenario.model, scenario.plan, scenario.training).model /
                 (static_cast<double>(ranks) * scenario.cluster.gpu.matrix_peak(vote.dtype));
  vote.scenario = std::move(scenario);
  return vote;
}

Result<Report> add_forecast(Vote& vote, const Session& session) {
  NS_TRY(Prediction prediction, predict(vote.scenario, session));
  Report answer = report(vote.scenario, prediction, {});
  vote.forecast = answer.step;
  vote.low = answer.step_low;
  vote.high = answer.step_high;
  vote.prediction.step = prediction.step;
  vote.prediction.critical_path = std::move(prediction.critical_path);
  return answer;
}

void add_baselines(std::vector<Vote>& votes) {
  std::map<std::pair<std::string, DType>, std::vector<double>> utilizations;
  for (const Vote& vote : votes) utilizations[{vote.gpu, vote.dtype}].push_back(vote.at_peak / vote.measured);
  for (Vote& vote : votes) {
    const std::vector<double>& all = utilizations[{vote.gpu, vote.dtype}];
    double sum = 0;
    for (const double utilization : all) sum += utilization;
    vote.baseline = vote.at_peak / (sum / static_cast<double>(all.size()));
  }
}

}  // namespace

Result<std::vector<RunCheck>> check_runs(std::span<const PublishedRuns> publications, const Catalog& catalog) {
  std::vector<RunCheck> checks;
  std::vector<Vote> votes;
  for (const PublishedRuns& publication : publications) {
    for (const PublishedRun& run : publication.runs) {
      const auto placed = [&](Error error) { return placed_in(run, std::move(error)); };
      NS_TRY(Scenario scenario, resolve(spec_of(run), catalog).map_error(placed));
      NS_TRY(Vote vote, vote_of(std::move(scenario), run.step));
      NS_TRY(const Session session, Session::make(vote.scenario).map_error(placed));
      RunCheck check;
      check.publication = publication.id;
      check.id = run.id;
      if (const auto answer = add_forecast(vote, session); !answer) check.unsupported = answer.error().message;
      checks.push_back(std::move(check));
      votes.push_back(std::move(vote));
    }
  }
  add_baselines(votes);
  for (std::size_t i = 0; i < checks.size(); ++i) {
    checks[i].gpu = votes[i].gpu;
    checks[i].measured = votes[i].measured;
    checks[i].forecast = votes[i].forecast;
    checks[i].low = votes[i].low;
    checks[i].high = votes[i].high;
    checks[i].baseline = votes[i].baseline;
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

Result<Vote> forecast_of(const std::vector<const CollectedRun*>& rows, const Catalog& catalog) {
  const CollectedRun& run = *rows.front();
  Seconds measured;
  for (const CollectedRun* row : rows) measured += row->measured / static_cast<double>(rows.size());
  NS_TRY(Scenario scenario, scenario_of(run, catalog));
  NS_TRY(Vote vote, vote_of(std::move(scenario), measured));
  NS_TRY(const Session session, Session::make(vote.scenario));
  NS_TRY(const Report report, add_forecast(vote, session));
  vote.run = &run;
  const std::string& kind = run.memory_kind;
  vote.memory = kind.find("nvidia-smi") != std::string::npos ? report.memory.device()
                : kind.find("reserved") != std::string::npos ? report.memory.reserved()
                                                             : report.memory.peak();
  vote.filled = report.memory.peak() / vote.scenario.cluster.gpu.memory;
  return vote;
}

std::map<std::string, Votes> by_publication(const std::vector<Vote>& votes) {
  std::map<std::string, Votes> publications;
  for (const Vote& vote : votes) publications[vote.run->publication].push_back(&vote);
  return publications;
}

// The ratio of measured to forecast step below which `share` of the publications' votes lie, one vote each; those of
// `left_out` do not count.
double step_quantile(const std::map<std::string, Votes>& publications, double share, const std::string& left_out = "") {
  std::vector<std::pair<double, double>> ratios;  // ratio, weight
  const std::size_t count = publications.size() - publications.count(left_out);
  for (const auto& [title, votes] : publications) {
    if (title == left_out) continue;
    for (const Vote* vote : votes) {
      ratios.emplace_back(vote->ratio(), 1 / static_cast<double>(votes.size()) / static_cast<double>(count));
    }
  }
  std::sort(ratios.begin(), ratios.end());
  double sum = 0;
  for (const auto& [ratio, weight] : ratios) {
    if ((sum += weight) >= share) return ratio;
  }
  return ratios.empty() ? 1.0 : ratios.back().first;
}

// Of an even number of values the mean of the middle two; ErrorFigures has the larger one.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Pairs of configurations, and of these the ones of which the forecast names the faster.
struct Ranking {
  int pairs = 0, right = 0;
  int inside = 0;  // measured differences in the 90 % interval of the difference
};
struct Rankings {
  Ranking plans;  // pairs that differ in the plan alone
  Ranking sizes;  // with pairs of models that have the same size, but not as many heads
};
Rankings rankings_of(const Votes& votes) {
  constexpr double kLeast = 0.03;  // apart, of the measured step
  Rankings found;
  for (std::size_t i = 0; i < votes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Vote &a = *votes[i], &b = *votes[j];
      if (a.run->work != b.run->work) continue;
      const double measured = a.measured / b.measured;
      if (std::abs(measured - 1) <= kLeast) continue;
      const int right = (measured < 1) == (a.forecast < b.forecast) ? 1 : 0;
      ++found.sizes.pairs, found.sizes.right += right;
      if (!(a.run->model == b.run->model)) continue;
      const Interval difference = step_difference(a.scenario, a.prediction, b.prediction);
      const Seconds longer = b.measured - a.measured;
      ++found.plans.pairs, found.plans.right += right;
      found.plans.inside += difference.low <= longer && longer <= difference.high ? 1 : 0;
    }
  }
  return found;
}

std::string error_line(const std::string& name, const Votes& votes) {
  std::vector<double> errors, baseline, sizes, widths;
  std::size_t inside = 0;
  for (const Vote* vote : votes) {
    errors.push_back(vote->error());
    baseline.push_back(vote->baseline_error());
    sizes.push_back(std::abs(vote->error()));
    widths.push_back((vote->high - vote->low) / vote->forecast / 2);
    if (vote->inside()) ++inside;
  }
  const ErrorFigures ours = figures_of(errors), constant = figures_of(baseline);
  return fmt::format(
      "| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:+.1f} | {:.0f} | {:.0f} | {:.1f} | {:.1f} | {:.1f} |\n", name,
      ours.rows, 100 * ours.mean, 100 * median(sizes), 100 * ours.p90, 100 * ours.largest, 100 * ours.bias,
      100.0 * static_cast<double>(inside) / static_cast<double>(votes.size()), 100 * median(widths),
      100 * constant.mean, 100 * constant.p90, 100 * constant.largest);
}

std::string error_table(const std::map<std::string, Votes>& publications, const Votes& all) {
  std::string text =
      "\nSteps, one vote a configuration, %; inside: of the 90 % interval; half-width: the median.\n\n"
      "| publication | runs | mean | median | p90 | max | bias | inside | half-width | constant utilization: mean | "
      "p90 | max |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  std::vector<std::pair<double, std::string>> lines;
  double mean = 0, bias = 0;
  for (const auto& [title, votes] : publications) {
    std::vector<double> errors;
    for (const Vote* vote : votes) errors.push_back(vote->error());
    const ErrorFigures figures = figures_of(errors);
    lines.emplace_back(-figures.mean, error_line(title, votes));
    mean += figures.mean / static_cast<double>(publications.size());
    bias += figures.bias / static_cast<double>(publications.size());
  }
  std::stable_sort(lines.begin(), lines.end());
  for (const auto& [order, line] : lines) text += line;
  if (all.empty()) return text;
  text += error_line("all", all);
  text += fmt::format("\neach publication one vote: mean {:.1f} %, bias {:+.1f} %\n", 100 * mean, 100 * bias);
  return text;
}

// How often an interval made of the other publications' ratios holds a publication's measurement.
std::string left_out_text(const std::map<std::string, Votes>& publications) {
  std::string text =
      fmt::format("measured over forecast, 5th and 95th percentile, each publication one vote: {:.3f} {:.3f}\n",
                  step_quantile(publications, 0.05), step_quantile(publications, 0.95));
  if (publications.size() < 2) return text;
  std::size_t inside = 0, count = 0;
  std::vector<double> widths;
  for (const auto& [title, votes] : publications) {
    const double low = step_quantile(publications, 0.05, title), high = step_quantile(publications, 0.95, title);
    widths.push_back((high - low) / 2);
    for (const Vote* vote : votes) inside += low <= vote->ratio() && vote->ratio() <= high ? 1U : 0U;
    count += votes.size();
  }
  text += fmt::format("the same of the other publications holds {} of {} measurements; half-width {:.0f} % (median)\n",
                      inside, count, 100 * median(widths));
  return text;
}

std::string ranking_table(const std::map<std::string, Votes>& publications) {
  std::string text =
      "\nPairs that differ in the plan alone and by more than 3 %: the faster one is named in. Inside: measured "
      "differences in the 90 % interval of the difference. Behind it, with pairs of models of the same size that have "
      "other numbers of heads\n\n"
      "| publication | pairs | right | % | inside % | other heads, too | right | % |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|\n";
  Rankings all;
  const auto figures = [](const Ranking& ranking) {
    return fmt::format("{} | {} | {:.0f}", ranking.pairs, ranking.right,
                       100.0 * ranking.right / std::max(1, ranking.pairs));
  };
  const auto add = [&](const std::string& name, const Rankings& each) {
    text += fmt::format("| {} | {} | {:.0f} | {} |\n", name, figures(each.plans),
                        100.0 * each.plans.inside / std::max(1, each.plans.pairs), figures(each.sizes));
  };
  const auto sum = [](Ranking& into, const Ranking& more) {
    into.pairs += more.pairs, into.right += more.right, into.inside += more.inside;
  };
  for (const auto& [title, votes] : publications) {
    const Rankings each = rankings_of(votes);
    if (each.sizes.pairs == 0) continue;
    add(title, each);
    sum(all.plans, each.plans), sum(all.sizes, each.sizes);
  }
  if (all.sizes.pairs == 0) return "";
  add("all", all);
  return text;
}

std::string memory_table(const std::map<std::string, Votes>& publications) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> errors;  // publication, kind
  for (const auto& [title, votes] : publications) {
    for (const Vote* vote : votes) {
      if (vote->run->memory > Bytes())
        errors[{title, vote->run->memory_kind}].push_back(vote->memory / vote->run->memory - 1);
    }
  }
  if (errors.empty()) return "";
  std::string text =
      "\nMemory of the fullest GPU, %.\n\n"
      "| publication | what was measured | runs | mean | p90 | max | bias |\n|---|---|---:|---:|---:|---:|---:|\n";
  for (const auto& [key, values] : errors) {
    const ErrorFigures figures = figures_of(values);
    text += fmt::format("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:+.1f} |\n", key.first, key.second, figures.rows,
                        100 * figures.mean, 100 * figures.p90, 100 * figures.largest, 100 * figures.bias);
  }
  return text;
}

// All of these runs ran: those that do not fit by our count tell where it is too high.
std::string too_large_table(const std::map<std::string, Votes>& publications) {
  std::string text =
      "\nPublished runs that do not fit by our count of memory; share: of the GPU's memory.\n\n"
      "| publication | runs | too large | mean share | largest share |\n|---|---:|---:|---:|---:|\n";
  for (const auto& [title, votes] : publications) {
    double sum = 0, largest = 0;
    int too_large = 0;
    for (const Vote* vote : votes) {
      sum += vote->filled;
      largest = std::max(largest, vote->filled);
      if (vote->filled > 1) ++too_large;
    }
    text += fmt::format("| {} | {} | {} | {:.2f} | {:.2f} |\n", title, votes.size(), too_large,
                        sum / static_cast<double>(votes.size()), largest);
  }
  return text;
}

std::string collection_markdown(std::vector<Vote> votes, const std::map<std::string, int>& reasons) {
  std::string refused;
  for (const auto& [reason, count] : reasons) refused += fmt::format("not forecast, {}: {}\n", count, reason);
  if (votes.empty()) return "No run could be forecast.\n" + refused;
  add_baselines(votes);
  std::stable_sort(votes.begin(), votes.end(),
                   [](const Vote& a, const Vote& b) { return std::abs(a.error()) > std::abs(b.error()); });
  std::string text =
      "| run | GPU | measured s | forecast s | 90 % interval s | error | constant utilization | memory |\n"
      "|---|---|---:|---:|---:|---:|---:|---:|\n";
  Votes all;
  for (const Vote& vote : votes) {
    text += fmt::format("| {} | {} | {:.3f} | {:.3f} | {:.2f} to {:.2f} | {:+.1f} % | {:+.1f} % | {:.0f} % |\n",
                        vote.run->id, vote.gpu, vote.measured / units::s, vote.forecast / units::s, vote.low / units::s,
                        vote.high / units::s, 100 * vote.error(), 100 * vote.baseline_error(), 100 * vote.filled);
    all.push_back(&vote);
  }
  const std::map<std::string, Votes> publications = by_publication(votes);
  text += error_table(publications, all);
  text += left_out_text(publications);
  text += refused;
  text += ranking_table(publications);
  text += memory_table(publications);
  text += too_large_table(publications);
  return text;
}

}  // namespace

Result<RunSuite> check_run_collection(const std::filesystem::path& file, const Catalog& catalog,
                                      const RunSuiteOptions& options, const std::function<void(double)>& progress) {
  RunSuite suite;
  NS_TRY(std::vector<CollectedRun> runs,
         read_run_collection(file, catalog, suite.mistakes, {options.titles, options.rows}));
  for (CollectedRun& run : runs) {
    run.spec.assignments.insert(run.spec.assignments.end(), options.with.assignments.begin(),
                                options.with.assignments.end());
  }
  suite.rows = runs.size() + suite.mistakes.size();
  std::map<std::string, int> reasons;  // why there is no forecast, and of how many configurations
  std::map<std::string, std::vector<const CollectedRun*>> by_key;
  for (const CollectedRun& run : runs) by_key[run.key].push_back(&run);
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
    // Without a refit this is all there is to do.
    if (progress) progress((options.refit ? 0.02 : 1) * static_cast<double>(done) / static_cast<double>(by_key.size()));
  }
  std::string left_out;
  if (options.refit) {
    std::vector<JudgedRun> judged;
    for (const Vote& vote : votes) judged.push_back({vote.run, vote.measured});
    NS_TRY(left_out, left_out_constants(judged, catalog, [&](double share) {
             if (progress) progress(0.02 + 0.98 * share);
           }));
  }
  suite.markdown = collection_markdown(std::move(votes), reasons) + left_out;
  return suite;
}

}  // namespace ns_dist
