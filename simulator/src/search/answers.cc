#include "search/answers.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costs.h"
#include "ns_dist/memory.h"
#include "ns_dist/planner.h"
#include "ns_dist/simulator.h"
#include "scenario_fields.h"
#include "step_times.h"
#include "without_effect.h"

namespace ns_dist {
namespace {

// Memory or network time of two plans that are no different to a user; and network time that is none, as a share of the
// step.
constexpr double kAlike = 1.01;
constexpr double kNoNetwork = 0.01;

// What collectives and messages of the busiest stage take alone.
double network_time(const StepProgram& program, const ProgramCosts& costs) {
  const std::vector<double> all =
      seconds_alone(program, costs, [](const WorkItem& item) { return !std::holds_alternative<Operator>(item.work); });
  return *std::max_element(all.begin(), all.end());
}

class Answers {
 public:
  Answers(const SearchGroups& groups, const Session& session, Crew& crew, NearPlans& near, SearchResult& result)
      : groups_(groups),
        space_(groups.space()),
        base_(groups.base()),
        alone_(without_sharing(groups.base())),
        session_(session),
        crew_(crew),
        near_(near),
        result_(result) {}

  Result<void> add() {
    near_.sort();
    if (near_.found()) choose();
    std::stable_sort(chosen_.begin(), chosen_.end(),
                     [](const Chosen& a, const Chosen& b) { return a.plan.step < b.plan.step; });
    std::optional<Prediction> best;
    for (const Chosen& chosen : chosen_) {
      if (crew_.stop() && !result_.answers.empty()) break;
      Scenario scenario = answered(chosen.plan);
      SearchAnswer answer;
      answer.why = chosen.why;
      NS_TRY(answer.assignments, assignments_of(chosen.plan, scenario));
      name_chosen(scenario, answer.assignments);
      NS_TRY(Prediction prediction, predict(scenario, session_));
      answer.report = report(scenario, prediction, advise(scenario, prediction, session_));
      answer.network = chosen.plan.network / groups_.scaled(scenario, 1) * units::s;  // of this plan's own batch
      answer.kinds = chosen.plan.kinds;
      if (best) {
        answer.behind = compare(result_.answers.front().report.scenario, *best, scenario, prediction);
      } else {
        answer.behind.from = prediction.step;
        best = std::move(prediction);
      }
      result_.answers.push_back(std::move(answer));
    }
    return {};
  }

 private:
  struct Chosen {
    NearPlan plan;
    std::vector<std::string> why;
  };

  double network_of(const NearPlan& plan) const {
    const Scenario scenario = near_.scenario_of(plan, alone_);
    const auto program = plan_program(scenario.model, scenario.plan, scenario.training, session_.plans());
    if (!program) return 0;
    const auto costs = costs_of(*program, scenario, session_);
    return costs ? groups_.scaled(scenario, network_time(*program, *costs)) : 0;
  }

  // ---- Which plans ----

  void choose(const NearPlan* plan, std::string why) {
    if (plan == nullptr) return;
    const auto same =
        std::find_if(chosen_.begin(), chosen_.end(), [plan](const Chosen& each) { return each.plan.is(*plan); });
    if (same != chosen_.end()) {
      same->why.push_back(std::move(why));
    } else {
      chosen_.push_back({*plan, {std::move(why)}});
    }
  }

  // The plan with the least `key`. One that was chosen already and is as good is it, too: no twins.
  template <class Key>
  void choose_least(const Key& key, std::string why, double nothing = 0) {
    const NearPlan* found = near_.least(key);
    if (found == nullptr) return;
    for (const Chosen& chosen : chosen_) {
      const NearPlan& known = known_as(chosen.plan);
      if (key(known) <= std::max(kAlike * key(*found), nothing)) return choose(&known, std::move(why));
    }
    choose(found, std::move(why));
  }
  const NearPlan& known_as(const NearPlan& plan) const {
    const std::vector<NearPlan>& all = near_.all();
    return *std::find_if(all.begin(), all.end(), [&](const NearPlan& each) { return each.is(plan); });
  }

  void choose() {
    if (!crew_.stop()) choose_all();
    if (!crew_.stop()) return;
    if (chosen_.empty()) {
      const NearPlan* best = nullptr;
      for (const NearPlan& plan : near_.all()) {
        if (plan.step >= 0 && (best == nullptr || plan.step < best->step)) best = &plan;
      }
      choose(best, "fastest so far");
    }
    for (Chosen& chosen : chosen_) chosen.plan.network = network_of(chosen.plan);
  }

  // Where the crew is told to stop, some of them.
  void choose_all() {
    const NearPlan* best = near_.fastest(near_.pointers());
    if (crew_.stop()) return;
    choose(best, "fastest");
    if (best != nullptr && is_tight(*best)) {
      std::vector<NearPlan*> not_tight = near_.pointers();
      std::erase_if(not_tight, [&](const NearPlan* plan) { return is_tight(*plan); });
      choose(near_.fastest(not_tight), "fastest that is not tight");
      if (crew_.stop()) return;
    }
    choose_least([](const NearPlan& plan) { return static_cast<double>(plan.kinds); }, "simplest to run");
    // Rounded to a thousandth: less frees nothing.
    choose_least(
        [](const NearPlan& plan) { return std::pow(1.001, std::ceil(std::log(plan.memory) / std::log(1.001))); },
        "most memory headroom");
    std::vector<NearPlan>& all = near_.all();
    const std::vector<double> network =
        crew_.shared<double>(all.size(), [&](std::size_t i) { return crew_.told_to_stop() ? 0 : network_of(all[i]); });
    if (crew_.stop()) return;
    for (std::size_t i = 0; i < network.size(); ++i) all[i].network = network[i];
    choose_least([](const NearPlan& plan) { return plan.network; }, "least network time", kNoNetwork * near_.best());
    for (const NearPlan& each : all) {
      const bool timed = each.step >= 0;
      if (each.step > near_.limit()) continue;
      result_.points.push_back({(timed ? each.step : each.bound) * units::s, each.memory * units::B, timed});
    }
    for (Chosen& chosen : chosen_)
      chosen.plan.network = known_as(chosen.plan).network;  // those that were copied before
  }

  bool is_tight(const NearPlan& plan) const { return plan.device > base_.cluster.gpu.memory / units::B; }

  // ---- What is told of them ----

  // What is forecast of a plan: what changes nothing in it is as where the search began; with the layout that its
  // framework wants written.
  Scenario answered(const NearPlan& plan) const {
    Scenario scenario = near_.scenario_of(plan, base_);
    for (const SearchSpace::Contents::Level& level : space_.levels) {
      if (level.given.size() == 1 || !changes_nothing(level.field, scenario)) continue;
      const auto done = assign(scenario, {level.field, value_text(base_, level.field)});
      NS_EXPECTS(done.has_value());
    }
    if (std::string layout = wanted_layout(scenario); !layout.empty()) {
      scenario.plan.pipeline_layout.text = std::move(layout);
    }
    return scenario;
  }

  // The assignments that repeat a plan, without those that say what follows anyway.
  Result<std::vector<Assignment>> assignments_of(const NearPlan& plan, const Scenario& scenario) const {
    const std::vector<std::string> texts = groups_.texts_of(plan.group, plan.leaf);
    std::vector<Assignment> all;
    for (const Assignment& each : space_.fixed.assignments) {
      if (groups_.level_of(each.field) == space_.levels.size()) all.push_back(each);
    }
    const std::size_t fixed = all.size();
    for (std::size_t i = 0; i < texts.size(); ++i) all.push_back({space_.levels[i].field, texts[i]});
    const auto resolved = [&](const std::vector<Assignment>& assignments) {
      ScenarioSpec spec;
      spec.assignments = assignments;
      return resolve(spec, *space_.catalog, space_.from.get());
    };
    const auto repeats = [&](const std::vector<Assignment>& assignments) {
      const auto again = resolved(assignments);
      return again && again->plan == scenario.plan && again->training == scenario.training &&
             again->cluster == scenario.cluster;
    };
    if (!repeats(all)) {  // fields that follow from others, and that the search left as they were
      NS_TRY(const Scenario again, resolved(all));
      for (const auto& changes :
           {differences(again.plan, scenario.plan), differences(again.training, scenario.training)}) {
        for (const Assignment& each : changes) set_again(all, each);
      }
    }
    NS_EXPECTS(repeats(all));
    for (std::size_t i = all.size(); i-- > fixed;) {
      const bool is_degree = all[i].field == "plan/tp" || all[i].field == "plan/pp" || all[i].field == "plan/dp";
      if (is_degree && all[i].text != "1") continue;
      std::vector<Assignment> fewer = all;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (repeats(fewer)) all = std::move(fewer);
    }
    return all;
  }

  // Advice on an answer is beside the flags that repeat it: what these set follows from nothing else. One flag says all
  // that overlaps.
  static void name_chosen(Scenario& scenario, const std::vector<Assignment>& assignments) {
    const auto name = [&named = scenario.named](std::string_view field) {
      if (named.names.emplace(field).second) named.chosen.emplace(field);
    };
    for (const Assignment& each : assignments) name(each.field);
    for (const FieldDescription& all : scenario_fields()) {
      const bool said = std::any_of(assignments.begin(), assignments.end(),
                                    [&](const Assignment& each) { return all.covers(each.field); });
      if (said) std::for_each(all.stands_for.begin(), all.stands_for.end(), name);
    }
  }

  const SearchGroups& groups_;
  const SearchSpace::Contents& space_;
  const Scenario& base_;
  Scenario alone_;  // the same, and nothing shares anything
  const Session& session_;
  Crew& crew_;
  NearPlans& near_;
  SearchResult& result_;
  std::vector<Chosen> chosen_;
};

}  // namespace

Result<void> add_answers(const SearchGroups& groups, const Session& session, Crew& crew, NearPlans& near,
                         SearchResult& result) {
  return Answers(groups, session, crew, near, result).add();
}

}  // namespace ns_dist
