#include "ns_dist/run_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "error_table.h"
#include "left_out_constants.h"
#include "ns_dist/error_figures.h"
#include "ns_dist/planner.h"
#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "published_runs.h"

namespace ns_dist {
namespace {

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
  // Shorter than half of what its FLOPs take at the peak: attention is counted in full, of which a mask leaves half.
  bool impossible() const { return measured < 0.5 * at_peak; }
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

// An impossible measurement is no part of the mean.
void add_baselines(std::vector<Vote>& votes) {
  std::map<std::pair<std::string, DType>, std::vector<double>> utilizations;
  for (const Vote& vote : votes) {
    if (!vote.impossible()) utilizations[{vote.gpu, vote.dtype}].push_back(vote.at_peak / vote.measured);
  }
  for (Vote& vote : votes) {
    const std::vector<double>& all = utilizations[{vote.gpu, vote.dtype}];
    if (all.empty()) continue;
    double sum = 0;
    for (const double utilization : all) sum += utilization;
    vote.baseline = vote.at_peak / (sum / static_cast<double>(all.size()));
  }
}

constexpr std::string_view kRunTerms =
    "Low to high: the 90 % interval. Constant utilization: error of one utilization for each GPU and number format, "
    "the mean of these very runs.";

std::vector<SuiteColumn> run_columns() {
  return {{"run", "run"},
          {"gpu", "GPU"},
          {"measured_s", "measured", Figure::kSeconds},
          {"forecast_s", "forecast", Figure::kSeconds},
          {"low_s", "low", Figure::kSeconds},
          {"high_s", "high", Figure::kSeconds},
          {"error", "error", Figure::kSignedPercent},
          {"constant_utilization", "constant utilization", Figure::kSignedPercent}};
}

// Of a run that could be planned.
Seconds measured_step(const PublishedRun& run, const Scenario& scenario) {
  if (run.step > Seconds()) return run.step;
  const auto ranks = rank_count(scenario.plan);
  const double gpus = ranks ? static_cast<double>(*ranks) : 1;
  return tokens_of_step(scenario.training) / (gpus * run.tokens_per_s_per_gpu) * units::s;
}

}  // namespace

Result<std::vector<RunCheck>> check_runs(std::span<const PublishedRuns> publications, const Catalog& catalog) {
  std::vector<RunCheck> checks;
  std::vector<Vote> votes;
  for (const PublishedRuns& publication : publications) {
    for (const PublishedRun& run : publication.runs) {
      const auto placed = [&](Error error) { return placed_in(run, std::move(error)); };
      NS_TRY(Scenario scenario, resolve(spec_of(run), catalog).map_error(placed));
      const Seconds measured = measured_step(run, scenario);
      NS_TRY(Vote vote, vote_of(std::move(scenario), measured));
      NS_TRY(const Session session, Session::make(vote.scenario).map_error(placed));
      RunCheck check;
      check.publication = publication.id;
      check.id = run.id;
      if (const auto answer = add_forecast(vote, session); !answer) check.unsupported = to_text(answer.error());
      if (vote.impossible()) {
        check.unsupported =
            fmt::format("{:.3g} s is less than half of the {:.3g} s that its FLOPs take at the GPUs' peak",
                        vote.measured / units::s, vote.at_peak / units::s);
      }
      checks.push_back(std::move(check));
      votes.push_back(std::move(vote));
    }
  }
  add_baselines(votes);
  for (std::size_t i = 0; i < checks.size(); ++i) {
    checks[i].gpu = votes[i].gpu;
    checks[i].sequence = votes[i].scenario.training.sequence;
    checks[i].measured = votes[i].measured;
    checks[i].forecast = votes[i].forecast;
    checks[i].low = votes[i].low;
    checks[i].high = votes[i].high;
    checks[i].baseline = votes[i].baseline;
  }
  return checks;
}

namespace {

// Errors of some runs, ours and those of a constant utilization.
struct RunErrors {
  std::vector<double> ours, baseline;
  std::size_t inside = 0;
  void add(const RunCheck& check) {
    ours.push_back(check.error());
    baseline.push_back(check.baseline_error());
    if (check.inside()) ++inside;
  }
  double share_inside() const { return static_cast<double>(inside) / static_cast<double>(ours.size()); }
};

}  // namespace

SuiteReport report_of(std::span<const RunCheck> checks) {
  std::vector<const RunCheck*> rows;
  for (const RunCheck& check : checks) rows.push_back(&check);
  const auto forecast = [](const RunCheck* check) { return check->unsupported.empty(); };
  std::ranges::stable_sort(rows, [&](const RunCheck* a, const RunCheck* b) {
    if (forecast(a) != forecast(b)) return forecast(a);
    return forecast(a) && std::abs(a->error()) > std::abs(b->error());
  });
  SuiteTable runs{"Runs", std::string(kRunTerms), run_columns()};
  RunErrors all;
  std::map<std::string, RunErrors> of_publications;
  SuiteReport report;
  for (const RunCheck* row : rows) {
    const std::string name = row->publication + ": " + row->id;
    if (!forecast(row)) {
      report.mistakes.push_back({ErrorCode::kInvalidInput, row->unsupported, name});
      continue;
    }
    runs.rows.push_back({name, row->gpu, row->measured / units::s, row->forecast / units::s, row->low / units::s,
                         row->high / units::s, row->error(), row->baseline_error()});
    all.add(*row);
    of_publications[row->publication].add(*row);
  }
  const auto columns = [](const char* key, const char* title) {
    return std::vector<SuiteColumn>{{key, title},
                                    {"runs", "runs", Figure::kNumber},
                                    {"mean", "mean", Figure::kPercent},
                                    {"p90", "p90", Figure::kPercent},
                                    {"max", "max", Figure::kPercent},
                                    {"bias", "bias", Figure::kSignedPercent},
                                    {"inside", "inside", Figure::kWholePercent}};
  };
  const auto add = [](SuiteTable& table, std::string name, const ErrorFigures& figures, SuiteCell held) {
    table.rows.push_back({std::move(name), static_cast<std::int64_t>(figures.rows), figures.mean, figures.p90,
                          figures.largest, figures.bias, std::move(held)});
  };
  SuiteTable publications{"Publications", "Constant: mean error of a constant utilization.",
                          columns("publication", "publication")};
  publications.columns.push_back({"constant_utilization", "constant", Figure::kPercent});
  for (const auto& [name, errors] : of_publications) {
    add(publications, name, figures_of(errors.ours), errors.share_inside());
    publications.rows.back().push_back(figures_of(errors.baseline).mean);
  }
  SuiteTable errors{"Errors", "Inside: measurements in the 90 % interval.", columns("forecaster", "forecaster")};
  if (!all.ours.empty()) {
    add(errors, "ns-dist", figures_of(all.ours), all.share_inside());
    add(errors, "constant utilization", figures_of(all.baseline), {});
  }
  report.tables = {std::move(runs)};
  if (of_publications.size() > 1) report.tables.push_back(std::move(publications));
  report.tables.push_back(std::move(errors));
  report.rows = checks.size();
  return report;
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
  vote.filled = report.memory.needed() / vote.scenario.cluster.gpu.memory;
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

// Pairs of configurations, and of these the ones of which the forecast names the faster.
struct Ranking {
  std::int64_t pairs = 0, right = 0;
  std::int64_t inside = 0;  // measured differences in the 90 % interval of the difference
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

std::vector<SuiteCell> error_cells(const std::string& name, const Votes& votes) {
  std::vector<double> errors, baseline, widths;
  std::size_t inside = 0;
  for (const Vote* vote : votes) {
    errors.push_back(vote->error());
    baseline.push_back(vote->baseline_error());
    widths.push_back((vote->high - vote->low) / vote->forecast / 2);
    if (vote->inside()) ++inside;
  }
  const ErrorFigures ours = figures_of(errors), constant = figures_of(baseline);
  return {name,
          static_cast<std::int64_t>(ours.rows),
          ours.mean,
          ours.median,
          ours.p90,
          ours.largest,
          ours.bias,
          static_cast<double>(inside) / static_cast<double>(votes.size()),
          median_of(widths),
          constant.mean,
          constant.p90,
          constant.largest};
}

SuiteTable error_table(const std::map<std::string, Votes>& publications, const Votes& all) {
  SuiteTable table{"Steps",
                   "One vote a configuration; inside: of the 90 % interval; half-width: the median.",
                   {{"publication", "publication"},
                    {"runs", "runs", Figure::kNumber},
                    {"mean", "mean", Figure::kPercent},
                    {"median", "median", Figure::kPercent},
                    {"p90", "p90", Figure::kPercent},
                    {"max", "max", Figure::kPercent},
                    {"bias", "bias", Figure::kSignedPercent},
                    {"inside", "inside", Figure::kWholePercent},
                    {"half_width", "half-width", Figure::kWholePercent},
                    {"constant_mean", "constant utilization: mean", Figure::kPercent},
                    {"constant_p90", "p90", Figure::kPercent},
                    {"constant_max", "max", Figure::kPercent}}};
  for (const auto& [title, votes] : publications) table.rows.push_back(error_cells(title, votes));
  constexpr std::size_t kMean = 2;
  std::ranges::stable_sort(table.rows, std::ranges::greater{},
                           [](const std::vector<SuiteCell>& row) { return std::get<double>(row[kMean]); });
  table.rows.push_back(error_cells("all", all));
  return table;
}

SuiteTable publication_table(const std::map<std::string, Votes>& publications) {
  double mean = 0, bias = 0;
  for (const auto& [title, votes] : publications) {
    std::vector<double> errors;
    for (const Vote* vote : votes) errors.push_back(vote->error());
    const ErrorFigures figures = figures_of(errors);
    mean += figures.mean / static_cast<double>(publications.size());
    bias += figures.bias / static_cast<double>(publications.size());
  }
  SuiteTable table{"Each publication one vote",
                   "",
                   {{"publications", "publications", Figure::kNumber},
                    {"mean", "mean", Figure::kPercent},
                    {"bias", "bias", Figure::kSignedPercent}}};
  table.rows.push_back({static_cast<std::int64_t>(publications.size()), mean, bias});
  return table;
}

// What the step's interval is made of, and how often one made of the other publications' ratios holds a publication's
// measurement.
SuiteTable interval_table(const std::map<std::string, Votes>& publications) {
  SuiteTable table{
      "Measured over forecast",
      "5th and 95th percentile, each publication one vote; inside: measurements that the same of the other "
      "publications holds.",
      {{"p05", "5th", Figure::kNumber},
       {"p95", "95th", Figure::kNumber},
       {"inside", "inside", Figure::kWholePercent},
       {"half_width", "half-width, median", Figure::kWholePercent}}};
  const auto rounded = [](double ratio) { return std::round(1000 * ratio) / 1000; };
  const double low = rounded(step_quantile(publications, 0.05)), high = rounded(step_quantile(publications, 0.95));
  if (publications.size() < 2) {
    table.rows.push_back({low, high, {}, {}});
    return table;
  }
  std::size_t inside = 0, count = 0;
  std::vector<double> widths;
  for (const auto& [title, votes] : publications) {
    const double least = step_quantile(publications, 0.05, title), most = step_quantile(publications, 0.95, title);
    widths.push_back((most - least) / 2);
    for (const Vote* vote : votes) inside += least <= vote->ratio() && vote->ratio() <= most ? 1U : 0U;
    count += votes.size();
  }
  table.rows.push_back({low, high, static_cast<double>(inside) / static_cast<double>(count), median_of(widths)});
  return table;
}

SuiteTable ranking_table(const std::map<std::string, Votes>& publications) {
  SuiteTable table{"Plans against each other",
                   "Pairs that differ in the plan alone and by more than 3 %: of how many is the faster one named? "
                   "Inside: measured differences in the 90 % interval of the difference. Behind it, with pairs of "
                   "models of the same size that have other numbers of heads.",
                   {{"publication", "publication"},
                    {"pairs", "pairs", Figure::kNumber},
                    {"right", "right", Figure::kNumber},
                    {"right_share", "right", Figure::kWholePercent},
                    {"inside", "inside", Figure::kWholePercent},
                    {"pairs_of_heads", "other heads, too", Figure::kNumber},
                    {"right_of_heads", "right", Figure::kNumber},
                    {"right_share_of_heads", "right", Figure::kWholePercent}}};
  Rankings all;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
  };
  const auto add = [&](const std::string& name, const Rankings& each) {
    const Ranking &plans = each.plans, &sizes = each.sizes;
    table.rows.push_back({name, plans.pairs, plans.right, share(plans.right, plans.pairs),
                          share(plans.inside, plans.pairs), sizes.pairs, sizes.right, share(sizes.right, sizes.pairs)});
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
  if (all.sizes.pairs > 0) add("all", all);
  return table;
}

SuiteTable memory_table(const std::map<std::string, Votes>& publications) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> errors;  // publication, kind
  for (const auto& [title, votes] : publications) {
    for (const Vote* vote : votes) {
      if (vote->run->memory > Bytes())
        errors[{title, vote->run->memory_kind}].push_back(vote->memory / vote->run->memory - 1);
    }
  }
  SuiteTable table{"Memory of the fullest GPU",
                   "",
                   {{"publication", "publication"},
                    {"kind", "what was measured"},
                    {"runs", "runs", Figure::kNumber},
                    {"mean", "mean", Figure::kPercent},
                    {"p90", "p90", Figure::kPercent},
                    {"max", "max", Figure::kPercent},
                    {"bias", "bias", Figure::kSignedPercent}}};
  for (const auto& [key, values] : errors) {
    const ErrorFigures figures = figures_of(values);
    table.rows.push_back({key.first, key.second, static_cast<std::int64_t>(figures.rows), figures.mean, figures.p90,
                          figures.largest, figures.bias});
  }
  return table;
}

// Forecasts of other tools that are printed beside the measurements, and ours of the same runs.
SuiteTable peer_table(const Votes& votes) {
  struct Errors {
    std::vector<double> theirs, ours, their_memory, our_memory;
  };
  std::map<std::string, Errors> tools;
  for (const Vote* vote : votes) {
    const CollectedRun& run = *vote->run;
    if (run.peer.empty()) continue;
    Errors& of = tools[run.peer];
    if (run.peer_step > Seconds()) {
      of.theirs.push_back(run.peer_step / vote->measured - 1);
      of.ours.push_back(vote->error());
    }
    if (run.peer_memory > Bytes() && run.memory > Bytes()) {
      of.their_memory.push_back(run.peer_memory / run.memory - 1);
      of.our_memory.push_back(vote->memory / run.memory - 1);
    }
  }
  SuiteTable table{"Other tools on the same runs",
                   "Steps, then memory: the mean error of the tool, and ours of the runs that it forecasts.",
                   {{"tool", "tool"},
                    {"runs", "runs", Figure::kNumber},
                    {"mean", "mean", Figure::kPercent},
                    {"max", "max", Figure::kPercent},
                    {"bias", "bias", Figure::kSignedPercent},
                    {"ours_mean", "ns-dist: mean", Figure::kPercent},
                    {"ours_max", "max", Figure::kPercent},
                    {"ours_bias", "bias", Figure::kSignedPercent},
                    {"memory_mean", "memory: mean", Figure::kPercent},
                    {"ours_memory_mean", "ns-dist: mean", Figure::kPercent}}};
  for (const auto& [tool, errors] : tools) {
    if (errors.theirs.empty()) continue;
    const ErrorFigures theirs = figures_of(errors.theirs), ours = figures_of(errors.ours);
    const auto mean_of = [](const std::vector<double>& all) {
      return all.empty() ? SuiteCell() : SuiteCell(figures_of(all).mean);
    };
    table.rows.push_back({tool, static_cast<std::int64_t>(theirs.rows), theirs.mean, theirs.largest, theirs.bias,
                          ours.mean, ours.largest, ours.bias, mean_of(errors.their_memory),
                          mean_of(errors.our_memory)});
  }
  return table;
}

// All of these runs ran: those that do not fit by our count tell where it is too high.
SuiteTable too_large_table(const std::map<std::string, Votes>& publications) {
  SuiteTable table{"Runs that do not fit by our count of memory",
                   "Share: of the GPU's memory.",
                   {{"publication", "publication"},
                    {"runs", "runs", Figure::kNumber},
                    {"too_large", "too large", Figure::kNumber},
                    {"mean_share", "mean share", Figure::kWholePercent},
                    {"largest_share", "largest share", Figure::kWholePercent}}};
  for (const auto& [title, votes] : publications) {
    double sum = 0, largest = 0;
    std::int64_t too_large = 0;
    for (const Vote* vote : votes) {
      sum += vote->filled;
      largest = std::max(largest, vote->filled);
      if (vote->filled > 1) ++too_large;
    }
    const auto runs = static_cast<std::int64_t>(votes.size());
    table.rows.push_back({title, runs, too_large, sum / static_cast<double>(runs), largest});
  }
  return table;
}

void add_tables(SuiteReport& report, std::vector<Vote> votes) {
  add_baselines(votes);
  std::ranges::stable_sort(votes, std::ranges::greater{}, [](const Vote& vote) { return std::abs(vote.error()); });
  SuiteTable runs{"Runs", std::string(kRunTerms), run_columns()};
  runs.columns.push_back({"memory_share", "memory", Figure::kWholePercent});
  Votes all;
  for (const Vote& vote : votes) {
    runs.rows.push_back({vote.run->id, vote.gpu, vote.measured / units::s, vote.forecast / units::s,
                         vote.low / units::s, vote.high / units::s, vote.error(), vote.baseline_error(), vote.filled});
    all.push_back(&vote);
  }
  const std::map<std::string, Votes> publications = by_publication(votes);
  report.tables = {std::move(runs),
                   error_table(publications, all),
                   publication_table(publications),
                   interval_table(publications),
                   ranking_table(publications),
                   memory_table(publications),
                   too_large_table(publications)};
  SuiteTable peers = peer_table(all);
  if (!peers.rows.empty()) report.tables.push_back(std::move(peers));
}

}  // namespace

Result<SuiteReport> check_run_collection(const std::filesystem::path& file, const Catalog& catalog,
                                         const RunSuiteOptions& options, const std::function<void(double)>& progress) {
  SuiteReport suite;
  NS_TRY(std::vector<CollectedRun> runs,
         read_run_collection(file, catalog, suite.mistakes, {options.titles, options.rows}));
  for (CollectedRun& run : runs) {
    run.spec.assignments.insert(run.spec.assignments.end(), options.with.assignments.begin(),
                                options.with.assignments.end());
  }
  suite.rows = runs.size() + suite.mistakes.size();
  std::map<std::string, std::int64_t> reasons;  // why there is no forecast, and of how many configurations
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
  if (votes.empty()) {
    suite.text = "No run could be forecast.\n";
    add_refused(suite, reasons);
    return suite;
  }
  std::vector<JudgedRun> judged;
  for (const Vote& vote : votes) judged.push_back({vote.run, vote.measured});
  add_tables(suite, std::move(votes));
  add_refused(suite, reasons);
  if (options.refit) {
    NS_TRY(SuiteTable constants, left_out_constants(judged, catalog, [&](double share) {
             if (progress) progress(0.02 + 0.98 * share);
           }));
    suite.tables.push_back(std::move(constants));
  }
  return suite;
}

}  // namespace ns_dist
