#include "search_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "arguments.h"
#include "evidence.h"
#include "ns_dist/internal/printable.h"
#include "report_text.h"
#include "sizes.h"
#include "tables.h"

namespace ns_dist::cli {
namespace {

constexpr std::size_t kMostReasons = 6;

// All of them, or the first, the last and how many.
std::string some_of(const std::vector<std::string>& texts, std::string_view between, std::string_view what) {
  constexpr std::size_t kMostShown = 6;
  if (texts.size() <= kMostShown) return fmt::format("{}", fmt::join(texts, between));
  return fmt::format("{} to {} ({} {})", texts.front(), texts.back(), with_commas(std::ssize(texts)), what);
}

bool asks_energy(const SearchGoals& goals) { return goals.tokens || goals.objective == Objective::kEnergy; }

double headroom(const Report& report) {
  return (report.scenario.cluster.gpu.memory - report.memory.peak()) / units::GiB;
}

// ", as in: ..." where there is an example of the reason.
std::string as_in(const SearchResult& result, const std::string& reason) {
  const auto example = result.examples.find(reason);
  return example == result.examples.end() ? "" : ", as in: " + with_flags(example->second);
}

std::string no_plan(const SearchCase& found) {
  if (found.result.interrupted) return "interrupted before a plan was timed";
  if (!lacks_memory(found.result)) {
    const auto most = most_frequent(found.result);
    if (most == found.result.infeasible.end()) return "no plan is possible";
    const std::int64_t batch = found.base.training.global_batch;
    const bool divides_some = batch % found.base.training.micro_batch == 0;
    if (const auto least = found.result.least_sequences; least && most->first == kGlobalBatch) {
      return fmt::format(
          "no plan is possible: --global-batch must be a multiple of --micro-batch x --dp, which is at least {} with "
          "the values that are tried{}{}",
          with_commas(*least), as_in(found.result, most->first),
          !found.advice.empty() ? ""
          : divides_some ? "\n  what may be possible: another --global-batch, fewer GPUs, or larger --tp, --cp or --pp"
                         : "\n  what may be possible: another --global-batch or --micro-batch");
    }
    return fmt::format("no plan is possible, most because of {}{}", with_flags(most->first),
                       as_in(found.result, most->first));
  }
  return fmt::format("no plan fits into memory: the least needs {} of {}", bytes_text(*found.result.least_memory),
                     bytes_text(found.base.cluster.gpu.memory));
}

void add_reasons(std::string& page, const SearchResult& result) {
  if (result.infeasible.empty()) return;
  std::vector<std::pair<std::string, std::uint64_t>> reasons(result.infeasible.begin(), result.infeasible.end());
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  page += "\nNot possible\n";
  for (std::size_t i = 0; i < std::min(kMostReasons, reasons.size()); ++i) {
    page += fmt::format("  {:>11}  {}{}\n", with_commas(reasons[i].second), with_flags(reasons[i].first),
                        as_in(result, reasons[i].first));
  }
}

void add_sensitivity(std::string& page, const SearchCase& found, const Style& style) {
  if (found.sensitivity.empty()) return;
  page += fmt::format("\n{}\n", style.bold("What 1 % better changes, with the fastest plan"));
  for (const Sensitivity& each : found.sensitivity) page += fmt::format("  {}\n", sensitivity_text(each));
}

// "15T tokens", as --tokens reads it.
std::string tokens_text(double tokens) {
  constexpr std::pair<double, std::string_view> kLetters[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
  for (const auto& [scale, letter] : kLetters) {
    if (tokens >= scale) return fmt::format("{:.4g}{} tokens", tokens / scale, letter);
  }
  return fmt::format("{:.4g} tokens", tokens);
}

std::string dated(const Prices& prices) {
  return prices.date.empty() ? "" : fmt::format(" (prices of {})", prices.date);
}

std::string of_what(const SearchGoals& goals) { return goals.tokens ? "" : " for 1e12 tokens"; }

// A line on how far off the forecasts of steps like it were.
std::string evidence_text(const Scenario& scenario) {
  return fmt::format("  {}\n", evidence_line(evidence_for(scenario), scenario));
}

// Of a training that is in time by the middle of its interval.
std::string not_certain(const TrainingTime& time, const SearchGoals& goals) {
  return goals.deadline && time.high > *goals.deadline ? ", but the end of the interval is too late" : "";
}

}  // namespace

std::string long_time(Seconds time) {
  const double hours = time / units::s / 3600;
  if (hours < 1) return duration_text(time);
  if (time > kNever) return "more than a million years";
  return hours < 48 ? fmt::format("{:.3g} h", hours) : fmt::format("{:.1f} d", hours / 24);
}

std::string cost_text(double cost) {
  if (std::isinf(cost)) return "endless";
  return cost < 1e4 || cost > 1e15 ? fmt::format("{:.4g}", cost) : with_commas(static_cast<std::int64_t>(cost + 0.5));
}

std::string behind_text(const SearchAnswer& answer) {
  const StepDifference& behind = answer.behind;
  if (behind.longer == Seconds()) return "";
  return fmt::format("{:+.1f} % ({:+.1f} to {:+.1f})", 100 * behind.share, 100 * behind.share_low,
                     100 * behind.share_high);
}

std::string goals_text(const SearchGoals& goals) {
  std::string text;
  if (goals.tokens) text += tokens_text(*goals.tokens);
  if (goals.deadline) text += fmt::format(" in {}", long_time(*goals.deadline));
  if (goals.budget) text += fmt::format(", at most {} {}", cost_text(*goals.budget), goals.prices->currency);
  if (!goals.prices) return text;
  return fmt::format("{}{}{}", text.empty() ? "cost of 1e12 tokens" : text,
                     goals.budget || !goals.tokens ? "" : ", cost", dated(*goals.prices));
}

std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from) {
  return fmt::format("ns-dist{} {}", from ? " --from " + shell_word(*from) : "",
                     to_flags(answer.assignments, answer.report.scenario, {}));
}

std::string fabric_text(const FabricLevel& level) {
  return fmt::format("{} {:.4g} GB/s", level.fabric.id, level.bandwidth_per_gpu() / (units::GB / units::s));
}

std::string search_counts(const SearchResult& result) {
  if (result.plans == 0) return "its plans were not counted";
  std::string text = fmt::format("{} plans: {} timed", with_commas(result.plans), with_commas(result.evaluated));
  if (result.evaluated_with_fewer_layers > 0) {
    text += fmt::format(" and {} with fewer layers recomputed", with_commas(result.evaluated_with_fewer_layers));
  }
  const std::uint64_t slow = result.bounded + result.skipped;
  if (slow > 0) text += fmt::format(", {} slower by a lower bound", with_commas(slow));
  std::uint64_t impossible = 0;
  for (const auto& [reason, count] : result.infeasible) impossible += count;
  if (impossible > 0) text += fmt::format(", {} not possible", with_commas(impossible));
  if (result.unseen > 0) {
    text += fmt::format(", {} not looked at", with_commas(result.unseen));
  }
  return text;
}

std::string work_text(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const auto all = [&](const char* field, const auto& text) {
    std::vector<std::string> texts;
    const auto add = [&](std::string one) {
      if (std::find(texts.begin(), texts.end(), one) == texts.end()) texts.push_back(std::move(one));
    };
    for (const SearchCase& each : cases) {
      for (const SearchAnswer& answer : each.result.answers) add(std::string(text(answer.report.scenario.training)));
    }
    if (const FieldValues* listed = listed_in(goals, field); texts.empty() && listed != nullptr) texts = listed->values;
    if (texts.empty()) {
      for (const SearchCase& each : cases) add(std::string(text(each.base.training)));
    }
    return some_of(texts, " or ", "values");
  };
  // One document a sequence is as long as that.
  const auto document = [](const Training& t) {
    return with_commas(t.document_tokens > 0 ? t.document_tokens : t.sequence);
  };
  const bool packed = std::any_of(cases.begin(), cases.end(),
                                  [](const SearchCase& each) { return each.base.training.document_tokens > 0; });
  return fmt::format("global batch {} of {} tokens{}, {}",
                     all("training/global_batch", [](const Training& t) { return with_commas(t.global_batch); }),
                     all("training/sequence", [](const Training& t) { return with_commas(t.sequence); }),
                     packed ? " in documents of " + all("training/document_tokens", document) : "",
                     all("training/dtype", [](const Training& t) { return name_of(t.precision); }));
}

std::string joined(const std::vector<std::string>& texts) { return fmt::format("{}", fmt::join(texts, ", ")); }

std::string plan_text(const ParallelPlan& plan) {
  std::string text = fmt::format("tp {} pp {} dp {}", plan.tp, plan.pp, plan.dp);
  if (plan.cp > 1) text += fmt::format(" cp {}", plan.cp);
  if (plan.ep > 1) text += fmt::format(" ep {}", plan.ep);
  if (plan.vpp > 1) text += fmt::format(" vpp {}", plan.vpp);
  if (plan.zero != ParallelPlan().zero) text += fmt::format(" zero {}", name_of(plan.zero));
  if (plan.recompute != Recompute::kNone) text += fmt::format(" recompute {}", field_text(recomputation_of(plan)));
  return text;
}

// The best change of a plan that the search did not try: of a field that it does not vary, or that the user gave.
static std::string not_searched(const Report& report) {
  for (const Improvement& each : report.improvements) {
    if (each.set.empty()) continue;
    return fmt::format("  not searched: {}, {}: {}: {}\n", saving_text(each, report.step),
                       duration_text(report.step - each.saves), with_flags(each.change),
                       to_flags(each.set, report.scenario));
  }
  return "";
}

// Where all answers are tight and slower plans were left out: how to see them.
static std::string all_tight(const SearchResult& result) {
  const bool all = std::all_of(result.answers.begin(), result.answers.end(),
                               [](const SearchAnswer& each) { return is_tight(each.report); });
  if (!all || result.interrupted || result.bounded + result.skipped == 0) return "";
  return "  all plans that are at most --within slower are tight: try a larger --within\n";
}

std::string training_text(const SearchAnswer& answer, const SearchGoals& goals, std::string_view with,
                          const Style& style) {
  std::string page;
  const Scenario& scenario = answer.report.scenario;
  if (const auto time = training_of(answer, goals)) {
    page += fmt::format("\n{}\n", style.bold(fmt::format("{} with {}", tokens_text(time->tokens), with)));
    page += fmt::format("  {} ({} to {} by the step's 90 % interval): {}, {} without failures{}\n",
                        style.bold(long_time(time->total)), long_time(time->low), long_time(time->high),
                        counted(static_cast<std::int64_t>(time->steps), "step"), long_time(time->without_failures),
                        !goals.deadline           ? ""
                        : !in_time(answer, goals) ? ", " + style.red("too late")
                                                  : ", " + style.green("in time") + not_certain(*time, goals));
    page += fmt::format("  goodput {:.1f} %: a failure every {}, a checkpoint of {}{} every {}\n", 100 * time->goodput,
                        long_time(time->time_between_failures), duration_text(time->checkpoint),
                        goals.reliability.asynchronous
                            ? fmt::format(" (training stands still for {})", duration_text(time->standstill))
                            : "",
                        long_time(time->interval));
    if (answer.unequal_step) {
      page += fmt::format(
          "  GPUs differ in speed by {:g} %: a step takes {}, {:+.1f} % (the step above: products alone, by {:g} %)\n",
          100 * *goals.gpu_spread, duration_text(*answer.unequal_step),
          100 * (*answer.unequal_step / answer.report.step - 1), 100 * scenario.constants.deviation);
    }
    if (goals.reliability.repair) {
      page += fmt::format("  {}: enough nodes {:.1f} % of the time\n", counted(time->spare_nodes, "spare node"),
                          100 * time->whole);
    }
    if (std::isinf(time->gpu_hours)) return page;  // and so are energy and cost
    page += fmt::format("  {} GPU-hours{}\n", cost_text(std::floor(time->gpu_hours)),
                        time->spare_nodes > 0 ? ", with those of spare nodes" : "");
  }
  const auto energy = energy_of(answer, goals);
  const bool shows_energy = energy && asks_energy(goals);
  if (page.empty() && (shows_energy || cost_of(answer, goals))) {
    page += fmt::format("\n{}\n", style.bold(fmt::format("With {}", with)));
  }
  if (shows_energy) {
    page += fmt::format("  at most {}{}: GPUs alone, {:.0f} W each, PUE {}\n", energy_text(*energy), of_what(goals),
                        scenario.cluster.gpu.board_power / units::W, scenario.facility.pue.value);
  }
  if (const auto cost = cost_of(answer, goals)) {
    const Report& report = answer.report;
    page += fmt::format("  {} {} ({} to {}){}{}{}\n", cost_text(*cost), goals.prices->currency,
                        cost_text(*cost * (report.step_low / report.step)),
                        cost_text(*cost * (report.step_high / report.step)), of_what(goals), dated(*goals.prices),
                        !goals.budget              ? ""
                        : in_budget(answer, goals) ? ", " + style.green("within the budget")
                                                   : ", " + style.red("above the budget"));
  }
  for (const std::string& text : unknown_prices(goals, {scenario.cluster.gpu.id})) page += "  " + text + "\n";
  return page;
}

std::string search_summary(const SearchCase& found, const SearchGoals& goals, const Style& style) {
  const Scenario& base = found.base;
  const SearchResult& result = found.result;
  std::string page = style.bold(fmt::format("{} on {} x {} ({})", base.model.name, with_commas(found.gpus),
                                            base.cluster.gpu.name, base.cluster.gpu.id)) +
                     "\n";
  page += fmt::format("  {}\n", work_text({found}, goals));
  page += fmt::format("  {}{}\n", result.interrupted ? style.red("interrupted; ") : "", search_counts(result));
  if (result.answers.empty()) {
    page += fmt::format("\n  {}\n", style.red(no_plan(found)));
    if (!found.advice.empty()) page += fmt::format("  {}\n", found.advice);
  }
  for (const SearchAnswer& answer : result.answers) {
    const Report& report = answer.report;
    page += fmt::format("\n{}\n", style.bold(joined(answer.why)));
    const std::string behind = behind_text(answer);
    page +=
        fmt::format("  {}  (90 % interval {} to {}){}{}{}\n", style.bold(duration_text(report.step)),
                    duration_text(report.step_low), duration_text(report.step_high), behind.empty() ? "" : ", ", behind,
                    behind.empty()             ? ""
                    : answer.behind.steps == 1 ? " of the fastest"
                                               : " of the fastest, for each token");
    if (&answer == &result.answers.front()) page += evidence_text(report.scenario);
    page += fmt::format("  MFU {}, {} of {} ({:.1f} GiB free{}), network {}\n", mfu_text(report),
                        bytes_text(report.memory.peak()), bytes_text(base.cluster.gpu.memory), headroom(report),
                        is_tight(report) ? ", tight: may run out" : "", duration_text(answer.network));
    page += fmt::format("  {}\n", command_of(answer, goals.from));
    for (const Warning& each : report.warnings) {
      if (each.code == "not_in_framework") page += fmt::format("  warning: {}\n", with_flags(each.message));
    }
    if (&answer != &result.answers.front()) continue;
    page += not_searched(report) + all_tight(result);
    if (!found.advice.empty()) page += fmt::format("  {}\n", found.advice);
  }
  if (const SearchAnswer* fastest = fastest_of(found)) page += training_text(*fastest, goals, "the fastest", style);
  add_sensitivity(page, found, style);
  add_reasons(page, result);
  return wrapped(page, style);
}

namespace {

// What tells the machines of a table apart besides GPUs and their number: a column for each part that differs.
std::vector<std::vector<std::string>> columns_that_differ(const std::vector<SearchCase>& cases,
                                                          const SearchGoals& goals) {
  const auto column = [&](const char* heading, const auto& text) {
    std::vector<std::string> all = {heading};
    for (const SearchCase& each : cases) all.push_back(text(each.base));
    return all;
  };
  // Of what was listed, that of the fastest plan.
  const auto trained = [&](const char* heading, const char* field, const auto& text) {
    std::vector<std::string> all = {heading};
    if (listed_in(goals, field) == nullptr) return all;
    for (const SearchCase& each : cases) {
      const SearchAnswer* fastest = fastest_of(each);
      all.emplace_back(fastest == nullptr ? "" : text(fastest->report.scenario.training));
    }
    return all;
  };
  std::vector<std::vector<std::string>> columns = {
      column("model", [](const Scenario& each) { return each.model.id; }),
      column("framework", [](const Scenario& each) { return each.framework; }),
      column("GPUs/node", [](const Scenario& each) { return std::to_string(each.cluster.gpus_per_node()); }),
      column("inside nodes", [](const Scenario& each) { return fabric_text(each.cluster.levels.front()); }),
      column("between nodes", [](const Scenario& each) { return fabric_text(each.cluster.levels.back()); })};
  // The fabrics of another GPU's usual machine are no question of the user.
  const auto differs = [&](const std::vector<std::string>& texts, bool of_one_gpu) {
    for (std::size_t a = 0; a < cases.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const bool alike = cases[a].base.cluster.gpu.id == cases[b].base.cluster.gpu.id;
        if ((alike || !of_one_gpu) && texts[a + 1] != texts[b + 1]) return true;
      }
    }
    return false;
  };
  std::vector<std::vector<std::string>> kept = {
      trained("batch", "training/global_batch", [](const Training& t) { return with_commas(t.global_batch); }),
      trained("format", "training/dtype", [](const Training& t) { return name_of(t.precision); })};
  std::erase_if(kept, [](const auto& cells) { return cells.size() == 1; });
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (differs(columns[i], i > 1)) kept.push_back(std::move(columns[i]));
  }
  const std::size_t apart = set_apart(cases.front().base, goals).size();
  for (std::size_t i = 0; i < apart; ++i) {
    std::vector<std::string> cells;
    for (const SearchCase& each : cases) {
      const Assignment set = set_apart(each.base, goals)[i];
      if (cells.empty()) cells.push_back(with_flags(set.field).substr(2));
      cells.push_back(set.text);
    }
    kept.push_back(std::move(cells));
  }
  return kept;
}

// Columns that are there only where they were asked for.
struct TableColumns {
  bool training = false, energy = false, cost = false;
  std::vector<std::vector<std::string>> differing;  // of each, its heading and then a cell for each case
};
TableColumns columns_of(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const bool has_price = std::any_of(cases.begin(), cases.end(), [&](const SearchCase& each) {
    return price_of(each.base.cluster.gpu, goals).has_value();
  });
  return {goals.tokens.has_value(), asks_energy(goals), has_price, columns_that_differ(cases, goals)};
}

std::vector<MachineTable::Column> table_heading(const TableColumns& columns, const SearchGoals& goals) {
  std::vector<MachineTable::Column> heading = {{"GPU", 19, false}};
  for (const std::vector<std::string>& column : columns.differing) heading.push_back({column.front(), 0, false});
  heading.insert(heading.end(), {{"GPUs", 5}, {"step", 9}, {"tokens/s", 12}, {"MFU", 6}, {"memory", 8}});
  if (columns.training) heading.insert(heading.end(), {{"training", 8}, {"goodput", 7}});
  const std::string_view each_trillion = goals.tokens ? "" : "/1e12";
  if (columns.energy) heading.push_back({fmt::format("energy{}", each_trillion), 11});
  if (columns.cost) heading.push_back({fmt::format("{}{}", goals.prices->currency, each_trillion), 12});
  heading.push_back({"plan", 0, false});
  return heading;
}

std::vector<std::string> table_line(const SearchCase& found, const TableColumns& columns,
                                    const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const auto line = static_cast<std::size_t>(&found - cases.data()) + 1;
  std::vector<std::string> cells = {found.base.cluster.gpu.id};
  for (const std::vector<std::string>& column : columns.differing) cells.push_back(column[line]);
  cells.push_back(with_commas(found.gpus));
  const SearchAnswer* const fastest = fastest_of(found);
  if (fastest == nullptr) {
    cells.push_back(no_plan(found));
    return cells;
  }
  const Report& report = fastest->report;
  cells.insert(cells.end(),
               {duration_text(report.step), with_commas(static_cast<std::int64_t>(report.tokens_per_second)),
                fmt::format("{:.1f} %", 100 * report.mfu), bytes_text(report.memory.peak())});
  if (const auto time = training_of(found, goals)) {
    cells.insert(cells.end(), {long_time(time->total), fmt::format("{:.1f} %", 100 * time->goodput)});
  }
  const auto cost = cost_of(found, goals);
  const auto energy = energy_of(found, goals);
  if (columns.energy) cells.push_back(energy ? energy_text(*energy) : "not known");
  if (columns.cost) cells.push_back(cost ? cost_text(*cost) : "no price");
  cells.push_back(fmt::format("{}{}{}", plan_text(report.scenario.plan), is_tight(report) ? ", tight" : "",
                              on_front(found, cases, goals) ? " *" : ""));
  return cells;
}

// What the marks of the table mean, and what its amounts are of.
std::string table_notes(const TableColumns& columns, const std::vector<SearchCase>& cases, const SearchGoals& goals,
                        const Style& style) {
  constexpr std::string_view kNoMore[] = {"no more GPUs", "no higher cost", "no more energy"};
  const Spent spent = spent_of(cases, goals);
  const bool all_known = std::all_of(cases.begin(), cases.end(), [&](const SearchCase& each) {
    return each.result.answers.empty() || amount(each, goals, spent).has_value();
  });
  std::string page = fmt::format("  * no other line {}is faster with {}\n",
                                 all_known                ? ""
                                 : spent == Spent::kMoney ? "that has a price "
                                                          : "whose energy is known ",
                                 kNoMore[static_cast<std::size_t>(spent)]);
  const bool some_tight = std::any_of(cases.begin(), cases.end(), [](const SearchCase& each) {
    const SearchAnswer* fastest = fastest_of(each);
    return fastest != nullptr && is_tight(fastest->report);
  });
  if (some_tight) page += "  tight: may run out of memory\n";
  if (!cases.empty() && cases.back().result.interrupted && !cases.back().result.answers.empty()) {
    page +=
        style.red("  interrupted: the last line is the best so far, and what comes behind it was not searched") + "\n";
  }
  if (columns.energy && !cases.empty()) {
    page += fmt::format("  energy: at most; GPUs alone, each at its board power, PUE {}\n",
                        cases.front().base.facility.pue.value);
  }
  if (columns.cost && !goals.prices->date.empty()) page += fmt::format("  prices of {}\n", goals.prices->date);
  for (const std::string& text : unknown_prices(goals, gpus_of(cases))) page += "  " + text + "\n";
  return page;
}

// What to doubt most of a plan; the command of the plan tells all of it.
std::string first_warning(const Report& report) {
  const std::vector<Warning> told = told_warnings(report);
  if (told.empty()) return "";
  const std::size_t others = told.size() - 1;
  return fmt::format("  warning: {}{}\n", with_flags(told.front().message),
                     others == 0 ? "" : fmt::format(" (and {} more: run the command above)", others));
}

// The cases that cost more than the cheapest one by the middle of the interval alone; "" without any.
std::string as_cheap(const std::vector<SearchCase>& cases, const SearchCase& cheapest) {
  constexpr std::size_t kMost = 3;
  std::vector<std::string> texts;
  for (const SearchCase& each : cases) {
    if (!each.cost_behind || each.cost_behind->low > 0 || each.base.model.id != cheapest.base.model.id) continue;
    texts.push_back(fmt::format("{} x {} {:+.1f} % ({:+.1f} to {:+.1f})", with_commas(each.gpus),
                                each.base.cluster.gpu.id, 100 * each.cost_behind->more, 100 * each.cost_behind->low,
                                100 * each.cost_behind->high));
  }
  if (texts.empty()) return "";
  const std::size_t shown = std::min(texts.size(), kMost);
  return fmt::format("  may cost no more: {}{}\n",
                     fmt::join(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < texts.size() ? fmt::format(" and {} more", texts.size() - shown) : "");
}

// Whether the last doubling of the GPUs of a case's machine, of those that have plans, makes the training less than a
// fifth shorter.
bool batch_limits(const SearchCase& one, const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const auto largest = [&](std::int64_t limit) {
    const SearchCase* found = nullptr;
    for (const SearchCase& each : cases) {
      const bool counts = same_machine(each.base, one.base) && each.gpus <= limit && fastest_of(each) != nullptr;
      if (counts && (found == nullptr || each.gpus > found->gpus)) found = &each;
    }
    return found;
  };
  const SearchCase* most = largest(kMostRanks);
  const SearchCase* half = most == nullptr ? nullptr : largest(most->gpus / 2);
  return half != nullptr && training_of(*most, goals)->total > 0.8 * training_of(*half, goals)->total;
}

// The best cases below the table.
std::string best_text(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style) {
  const BestCases best = best_of(cases, goals);
  std::string page;
  std::set<const SearchCase*> shown;  // with what to doubt
  const auto show = [&](const SearchCase* found, std::string_view what) {
    if (found == nullptr) return;
    const Report& report = fastest_of(*found)->report;
    page += fmt::format("\n{}: {} x {}\n", style.bold(what), with_commas(found->gpus), found->base.cluster.gpu.id);
    if (const auto time = training_of(*found, goals)) {
      page += fmt::format("  {} (90 % interval {} to {}{}){}{}\n", long_time(time->total), long_time(time->low),
                          long_time(time->high), in_time(*found, goals) ? not_certain(*time, goals) : "",
                          goals.deadline && !in_time(*found, goals) ? ", " + style.red("too late") : "",
                          goals.budget && !in_budget(*found, goals) ? ", " + style.red("above the budget") : "");
    } else {
      page += fmt::format("  {} a step (90 % interval {} to {})\n", duration_text(report.step),
                          duration_text(report.step_low), duration_text(report.step_high));
    }
    page += fmt::format("  {}\n", command_of(*fastest_of(*found), goals.from));
    if (shown.insert(found).second) page += evidence_text(report.scenario) + first_warning(report);
  };
  show(best.fastest, "The fastest");
  if (best.fastest != nullptr) add_sensitivity(page, *best.fastest, style);
  show(best.cheapest, "The cheapest");
  if (best.cheapest != nullptr) page += as_cheap(cases, *best.cheapest);
  if (best.cheapest_in_time != best.cheapest) show(best.cheapest_in_time, "The cheapest that is in time");
  if (goals.objective == Objective::kEnergy) show(best.least_energy, "The least energy");
  show(best.fewest_gpus_in_time, "The fewest GPUs of these that are in time");
  if (best.fewest_gpus_surely_in_time != best.fewest_gpus_in_time) {
    show(best.fewest_gpus_surely_in_time, "The fewest GPUs of these whose whole interval is in time");
  }
  show(best.most_gpus_in_budget, "The most GPUs of these that the budget buys");
  if (goals.budget && best.most_gpus_in_budget == nullptr) {
    page += "\n" + style.red("The budget buys none of these") + "\n";
  }
  if (goals.deadline && best.fewest_gpus_in_time == nullptr && best.fastest != nullptr) {
    page += "\n" + style.red(goals.finds_size ? "None of the sizes that were tried is in time"
                                              : "No cluster of these is in time");
    const auto time = training_of(*best.fastest, goals);
    if (time) page += fmt::format("; the soonest takes {}", long_time(time->total));
    if (time && goals.finds_size && batch_limits(*best.fastest, cases, goals))
      page += "; more GPUs help little with this --global-batch: try a larger one";
    page += "\n";
  }
  return page;
}

}  // namespace

std::string models_text(const std::vector<SearchCase>& cases) {
  std::vector<std::string> models;
  for (const SearchCase& each : cases) {
    if (std::find(models.begin(), models.end(), each.base.model.name) == models.end())
      models.push_back(each.base.model.name);
  }
  return some_of(models, "; ", "models");
}

MachineTable machine_table(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const TableColumns columns = columns_of(cases, goals);
  MachineTable table{table_heading(columns, goals), {}};
  for (const SearchCase& each : cases) table.rows.push_back(table_line(each, columns, cases, goals));
  return table;
}

std::string below_machines(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style) {
  return table_notes(columns_of(cases, goals), cases, goals, style) + best_text(cases, goals, style);
}

std::string search_table(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style) {
  MachineTable table = machine_table(cases, goals);
  std::vector<std::string> heading;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    MachineTable::Column& column = table.columns[i];
    heading.push_back(column.heading);
    column.width = std::max(column.width, column.heading.size());
    for (const auto& row : table.rows) {
      if (i + 1 < row.size()) column.width = std::max(column.width, row[i].size());  // the last cell ends its line
    }
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t i = 0; i + 1 < cells.size(); ++i) {
      const auto& [name, width, number] = table.columns[i];
      text += number ? fmt::format("{:>{}}  ", cells[i], width) : fmt::format("{:<{}}  ", cells[i], width);
    }
    return text + cells.back();
  };
  std::string page = style.bold(models_text(cases)) + "\n" + style.bold(line(heading)) + "\n";
  for (const auto& row : table.rows) page += line(row) + "\n";
  return page + below_machines(cases, goals, style);
}

}  // namespace ns_dist::cli
