#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "error_table.h"
#include "ns_dist/run_suite.h"
#include "ns_dist/search.h"
#include "ns_dist/simulator.h"
#include "published_runs.h"

namespace ns_dist {
namespace {

constexpr double kNear = 0.10;  // of our best step

// Fields of a published plan that the search finds again. What else the row says (ZeRO, overlap, gradients, libraries)
// is how its framework runs, and stays.
constexpr std::string_view kFree[] = {"plan/tp",
                                      "plan/cp",
                                      "plan/pp",
                                      "plan/dp",
                                      "plan/ep",
                                      "plan/etp",
                                      "plan/vpp",
                                      "plan/schedule",
                                      "plan/recompute",
                                      "plan/sequence_parallel",
                                      "plan/account_embedding",
                                      "plan/account_loss",
                                      "training/micro_batch"};

struct PlanCheck {
  const CollectedRun* run = nullptr;
  std::int64_t gpus = 0;
  Seconds published, best;  // both forecast
  bool fits = true;         // the published plan, by our count of memory
  std::string plan;         // the best one's degrees
  double behind() const { return published / best - 1; }
};

Result<PlanCheck> check_plan_of(const CollectedRun& run, const Catalog& catalog, unsigned threads) {
  PlanCheck check;
  check.run = &run;
  NS_TRY(const Scenario base, base_of(run, catalog));
  NS_TRY(const Scenario published, resolve(run.spec, catalog, &base));
  NS_TRY(check.gpus, rank_count(published.plan));
  NS_TRY(const Session session, Session::make(published));
  NS_TRY(const Prediction prediction, predict(published, session));
  check.published = prediction.step;
  check.fits = prediction.memory.fits(published.cluster.gpu.memory);

  SearchRequest request;
  request.gpus = check.gpus;
  request.from = std::make_shared<const Scenario>(base);
  for (const Assignment& each : run.spec.assignments) {
    if (std::find(std::begin(kFree), std::end(kFree), each.field) == std::end(kFree)) {
      request.fixed.assignments.push_back(each);
    }
  }
  std::vector<std::string> schedules = {"1f1b", "interleaved"};  // of Megatron-LM
  if (std::find(schedules.begin(), schedules.end(), published.plan.schedule) == schedules.end()) {
    schedules.push_back(published.plan.schedule);
  }
  request.listed.push_back({"plan/schedule", std::move(schedules)});
  // The search leaves stages even unless it is asked for more.
  if (published.plan.account_embedding) request.listed.push_back({"plan/account_embedding", {"off", "on"}});
  if (published.plan.account_loss) request.listed.push_back({"plan/account_loss", {"off", "on"}});
  NS_TRY(const SearchSpace space, SearchSpace::make(std::move(request), catalog));
  NS_TRY(const Session own, Session::make(space.base()));
  SearchOptions options;
  options.threads = threads;
  options.within = 1e-6;  // the fastest is all that is asked for
  NS_TRY(const SearchResult found, search(space, own, options));
  if (found.answers.empty()) {
    return fail({ErrorCode::kInfeasible, "no plan fits", run.id});
  }
  const Report& best = found.answers.front().report;
  const ParallelPlan& plan = best.scenario.plan;
  check.best = best.step;
  check.plan =
      fmt::format("tp {} cp {} pp {} dp {} ep {} vpp {} mbs {} {} {}", plan.tp, plan.cp, plan.pp, plan.dp, plan.ep,
                  plan.vpp, best.scenario.training.micro_batch, plan.schedule, field_text(plan.recompute));
  return check;
}

void add_tables(SuiteReport& report, std::vector<PlanCheck> checks) {
  std::stable_sort(checks.begin(), checks.end(),
                   [](const PlanCheck& a, const PlanCheck& b) { return a.behind() > b.behind(); });
  SuiteTable plans{"Plans",
                   "All forecast.",
                   {{"run", "published plan"},
                    {"gpus", "GPUs", Figure::kNumber},
                    {"fits", "fits"},
                    {"forecast_s", "forecast", Figure::kSeconds},
                    {"best_s", "our best", Figure::kSeconds},
                    {"behind", "behind", Figure::kSignedPercent},
                    {"best_plan", "our best plan"}}};
  struct Count {
    std::int64_t works = 0, near = 0, as_fast = 0, too_large = 0;
  };
  std::map<std::string, Count> by_publication;
  Count all;
  for (const PlanCheck& check : checks) {
    plans.rows.push_back({check.run->id, check.gpus, check.fits ? "yes" : "no", check.published / units::s,
                          check.best / units::s, check.behind(), check.plan});
    for (Count* count : {&by_publication[check.run->publication], &all}) {
      ++count->works;
      count->near += check.behind() <= kNear ? 1 : 0;
      count->as_fast += check.best <= check.published ? 1 : 0;
      count->too_large += check.fits ? 0 : 1;
    }
  }
  SuiteTable counts{"Works",
                    fmt::format("Near: the published plan is at most {:.0f} % slower than our best. As fast: our best "
                                "is at least as fast. Too large: published plans that do not fit by our count of "
                                "memory.",
                                100 * kNear),
                    {{"publication", "publication"},
                     {"works", "works", Figure::kNumber},
                     {"near", "near", Figure::kNumber},
                     {"as_fast", "as fast", Figure::kNumber},
                     {"too_large", "too large", Figure::kNumber}}};
  const auto add = [&](const std::string& name, const Count& count) {
    counts.rows.push_back({name, count.works, count.near, count.as_fast, count.too_large});
  };
  for (const auto& [title, count] : by_publication) add(title, count);
  if (by_publication.size() > 1) add("all", all);
  report.tables.push_back(std::move(plans));
  report.tables.push_back(std::move(counts));
}

}  // namespace

Result<SuiteReport> check_plans(const std::filesystem::path& file, const Catalog& catalog,
                                std::span<const std::string> titles, unsigned threads,
                                const std::function<void(double)>& progress) {
  SuiteReport suite;
  NS_TRY(const std::vector<CollectedRun> runs, read_run_collection(file, catalog, suite.mistakes, {titles}));
  // Of each work the plan that was measured to be fastest: that is the one that its authors would choose.
  std::map<std::pair<std::string, std::string>, const CollectedRun*> fastest;
  for (const CollectedRun& run : runs) {
    const CollectedRun*& best = fastest[{run.publication, run.work}];
    if (best == nullptr || run.measured < best->measured) best = &run;
  }
  suite.rows = fastest.size() + suite.mistakes.size();
  std::vector<PlanCheck> checks;
  std::map<std::string, std::int64_t> reasons;
  std::size_t done = 0;
  for (const auto& [work, run] : fastest) {
    if (auto check = check_plan_of(*run, catalog, threads)) {
      checks.push_back(*std::move(check));
    } else {
      ++reasons[check.error().message];
    }
    if (progress) progress(static_cast<double>(++done) / static_cast<double>(fastest.size()));
  }
  add_tables(suite, std::move(checks));
  add_refused(suite, reasons);
  return suite;
}

}  // namespace ns_dist
