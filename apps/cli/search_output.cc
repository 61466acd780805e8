#include "search_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "arguments.h"
#include "ns_dist/energy.h"
#include "ns_dist/internal/sensitivity_json.h"
#include "ns_dist/version.h"
#include "report_text.h"
#include "tables.h"

namespace ns_dist::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostReasons = 6;
constexpr double kUnknown = std::numeric_limits<double>::infinity();

double headroom(const Report& report) {
  return (report.scenario.cluster.gpu.memory - report.memory.peak()) / units::GiB;
}

// Whether fragmentation may take more than there is.
bool is_tight(const Report& report) { return report.memory.device() > report.scenario.cluster.gpu.memory; }

std::string behind_text(const SearchAnswer& answer) {
  const StepDifference& behind = answer.behind;
  if (behind.longer == Seconds()) return "";
  return fmt::format(", {:+.1f} % ({:+.1f} to {:+.1f}) of the fastest{}", 100 * behind.share(behind.longer),
                     100 * behind.share(behind.low), 100 * behind.share(behind.high),
                     behind.steps == 1 ? "" : ", for each token");
}

// ", as in: ..." where there is an example of the reason.
std::string as_in(const SearchResult& result, const std::string& reason) {
  const auto example = result.examples.find(reason);
  return example == result.examples.end() ? "" : ", as in: " + with_flags(example->second);
}

auto most_frequent(const SearchResult& result) {
  return std::max_element(result.infeasible.begin(), result.infeasible.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
}

std::string no_plan(const SearchCase& found) {
  if (found.result.interrupted) return "interrupted before a plan was timed";
  if (!lacks_memory(found.result)) {
    const auto most = most_frequent(found.result);
    if (most == found.result.infeasible.end()) return "no plan is possible";
    if (const auto least = found.result.least_sequences; least && most->first == "training/global_batch") {
      return fmt::format(
          "no plan is possible: --global-batch must be a multiple of --micro-batch x --dp, which is at least {} with "
          "the values that are tried{}\n  what may be possible: another --global-batch, fewer GPUs, or larger --tp, "
          "--cp or --pp",
          with_commas(*least), as_in(found.result, most->first));
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
    page += fmt::format("  {:>11}  {}{}\n", with_commas(static_cast<std::int64_t>(reasons[i].second)),
                        with_flags(reasons[i].first), as_in(result, reasons[i].first));
  }
}

void add_sensitivity(std::string& page, const SearchCase& found, const Style& style) {
  if (found.sensitivity.empty()) return;
  page += fmt::format("\n{}\n", style.bold("What 1 % better changes, with the fastest plan"));
  for (const Sensitivity& each : found.sensitivity) page += fmt::format("  {}\n", sensitivity_text(each));
}

std::string long_time(Seconds time) {
  const double hours = time / units::s / 3600;
  if (hours < 1) return duration_text(time);
  if (time > kNever) return "more than a million years";
  return hours < 48 ? fmt::format("{:.3g} h", hours) : fmt::format("{:.1f} d", hours / 24);
}

std::string dated(const Prices& prices) {
  return prices.date.empty() ? "" : fmt::format(" (prices of {})", prices.date);
}

// Prices of GPUs that the catalog does not know, and that are not those of the cases either.
std::vector<std::string> unknown_prices(const SearchGoals& goals, std::span<const SearchCase> cases) {
  std::vector<std::string> texts;
  if (!goals.prices) return texts;
  for (const auto& [id, text] : goals.prices->unknown) {
    const std::string& gpu = id;  // clang 14 captures no structured bindings
    const auto searched = [&](const SearchCase& each) { return each.base.cluster.gpu.id == gpu; };
    if (std::none_of(cases.begin(), cases.end(), searched)) texts.push_back(text);
  }
  if (!texts.empty()) return texts;  // a misspelled GPU is why
  std::vector<std::string_view> told;
  for (const SearchCase& each : cases) {
    const std::string& gpu = each.base.cluster.gpu.id;
    if (price_of(each.base.cluster.gpu, goals) || std::find(told.begin(), told.end(), gpu) != told.end()) continue;
    texts.push_back(fmt::format("no price of {}: what it costs is not known", gpu));
    told.push_back(gpu);
  }
  return texts;
}

std::string cost_text(double cost) {
  if (std::isinf(cost)) return "endless";
  return cost < 1e4 || cost > 1e15 ? fmt::format("{:.4g}", cost) : with_commas(static_cast<std::int64_t>(cost + 0.5));
}

std::optional<TrainingTime> training_of(const SearchAnswer& answer, const SearchGoals& goals) {
  if (!goals.tokens) return std::nullopt;
  const auto time = time_to_train(answer.report, *goals.tokens, goals.reliability, answer.unequal_step);
  return time ? std::optional(*time) : std::nullopt;
}

// Tokens a second: of a whole training with its failures, where its length is known.
double speed_of(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto time = training_of(answer, goals);
  return time ? time->tokens / (time->total / units::s) : answer.report.tokens_per_second;
}

std::optional<double> cost_of(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto price = price_of(answer.report.scenario.cluster.gpu, goals);
  if (!price) return std::nullopt;
  if (const auto time = training_of(answer, goals)) return *price * time->gpu_hours;
  return *price * static_cast<double>(answer.report.ranks) * 1e12 / speed_of(answer, goals) / 3600;
}

// At most, of the same.
std::optional<Joules> energy_of(const SearchAnswer& answer, const SearchGoals& goals) {
  if (!answer.report.energy) return std::nullopt;
  const auto time = training_of(answer, goals);
  return time ? time->energy : answer.report.energy->trillion_tokens;
}

std::string fabric_text(const FabricLevel& level) {
  return fmt::format("{} {:.4g} GB/s", level.fabric.id, level.bandwidth_per_gpu() / (units::GB / units::s));
}

// The values of a field that has several; else nullptr.
const FieldValues* listed_in(const SearchGoals& goals, std::string_view field) {
  const auto known = std::find_if(goals.listed.begin(), goals.listed.end(),
                                  [field](const FieldValues& each) { return each.field == field; });
  return known == goals.listed.end() ? nullptr : &*known;
}

// Of the fastest plan; nothing where there is none.
const SearchAnswer* fastest_of(const SearchCase& found) {
  return found.result.answers.empty() ? nullptr : &found.result.answers.front();
}
std::optional<Joules> energy_of(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest == nullptr ? std::nullopt : energy_of(*fastest, goals);
}
double speed_of(const SearchCase& found, const SearchGoals& goals) {
  return speed_of(found.result.answers.front(), goals);
}

std::string of_what(const SearchGoals& goals) { return goals.tokens ? "" : " for 1e12 tokens"; }

// What a case takes, for which another may take less: energy or money where these are asked for, or GPUs.
enum class Spent { kGpus, kMoney, kEnergy };
std::optional<double> amount(const SearchCase& found, const SearchGoals& goals, Spent spent) {
  if (found.result.answers.empty()) return std::nullopt;
  if (spent == Spent::kMoney) return cost_of(found, goals);
  if (spent == Spent::kGpus) return static_cast<double>(found.gpus);
  const auto energy = energy_of(found, goals);
  return energy ? std::optional(*energy / kKilowattHour) : std::nullopt;
}
Spent spent_of(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const Spent asked = goals.objective == Objective::kEnergy ? Spent::kEnergy
                      : goals.prices                        ? Spent::kMoney
                                                            : Spent::kGpus;
  const bool known = std::any_of(cases.begin(), cases.end(),
                                 [&](const SearchCase& each) { return amount(each, goals, asked).has_value(); });
  return known ? asked : Spent::kGpus;
}

// Whether no other case is faster and takes no more, or is as fast and takes less. What a case without a price takes is
// not known: it is not compared.
bool on_front(const SearchCase& one, const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const Spent what = spent_of(cases, goals);
  const std::optional<double> spent = amount(one, goals, what);
  if (!spent) return false;
  const double speed = speed_of(one, goals);
  return std::none_of(cases.begin(), cases.end(), [&](const SearchCase& other) {
    const std::optional<double> other_spent = amount(other, goals, what);
    if (&other == &one || !other_spent) return false;
    const double other_speed = speed_of(other, goals);
    return other_speed >= speed && *other_spent <= *spent && (other_speed > speed || *other_spent < *spent);
  });
}

bool in_budget(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto cost = cost_of(answer, goals);
  return cost && goals.budget && *cost <= *goals.budget;
}
bool in_budget(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest != nullptr && in_budget(*fastest, goals);
}

bool in_time(const SearchAnswer& answer, const SearchGoals& goals) {
  const auto time = training_of(answer, goals);
  return time && goals.deadline && time->total <= *goals.deadline;
}

// Of a training that is in time by the middle of its interval.
std::string not_certain(const TrainingTime& time, const SearchGoals& goals) {
  return goals.deadline && time.high > *goals.deadline ? ", but the end of the interval is too late" : "";
}

ordered_json training_json(const TrainingTime& time) {
  return {{"tokens", time.tokens},
          {"steps", time.steps},
          {"seconds", time.total / units::s},
          {"low_s", time.low / units::s},
          {"high_s", time.high / units::s},
          {"without_failures_s", time.without_failures / units::s},
          {"goodput", time.goodput},
          {"time_between_failures_s", time.time_between_failures / units::s},
          {"step_time_s", time.step / units::s},
          {"checkpoint_s", time.checkpoint / units::s},
          {"checkpoint_standstill_s", time.standstill / units::s},
          {"checkpoint_interval_s", time.interval / units::s},
          {"spare_nodes", time.spare_nodes},
          {"enough_nodes_share", time.whole},
          {"gpu_hours", time.gpu_hours},
          {"kwh_at_most", time.energy ? ordered_json(*time.energy / kKilowattHour) : ordered_json(nullptr)}};
}

ordered_json answer_json(const SearchAnswer& answer, const SearchGoals& goals) {
  ordered_json json;
  json["why"] = joined(answer.why);
  json["command"] = command_of(answer, goals.from);
  json["behind_s"] = answer.behind.longer / units::s;
  json["behind_low_s"] = answer.behind.low / units::s;
  json["behind_high_s"] = answer.behind.high / units::s;
  json["headroom_bytes"] = (answer.report.scenario.cluster.gpu.memory - answer.report.memory.peak()) / units::B;
  json["network_s"] = answer.network / units::s;
  json["kinds_of_parallelism"] = answer.kinds;
  if (const auto time = training_of(answer, goals)) json["training"] = training_json(*time);
  json.update(ordered_json::parse(report_json(answer.report)));
  return json;
}

}  // namespace

bool lacks_memory(const SearchResult& result) {
  const auto most = most_frequent(result);
  return result.least_memory && (most == result.infeasible.end() || most->first == "memory");
}

std::string command_of(const SearchAnswer& answer, const std::optional<std::string>& from) {
  return fmt::format("ns-dist{} {}", from ? " --from " + shell_word(*from) : "",
                     to_flags(answer.assignments, answer.report.scenario.plan));
}

std::optional<TrainingTime> training_of(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest == nullptr ? std::nullopt : training_of(*fastest, goals);
}

bool in_time(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest != nullptr && in_time(*fastest, goals);
}

std::optional<double> price_of(const Gpu& gpu, const SearchGoals& goals) {
  if (!goals.prices) return std::nullopt;
  const auto known = goals.prices->gpu_hour.find(gpu.id);
  return known == goals.prices->gpu_hour.end() ? std::nullopt : std::optional(known->second);
}

std::optional<double> cost_of(const SearchCase& found, const SearchGoals& goals) {
  const SearchAnswer* fastest = fastest_of(found);
  return fastest == nullptr ? std::nullopt : cost_of(*fastest, goals);
}

std::string search_counts(const SearchResult& result) {
  std::string text = fmt::format("{} plans: {} timed", with_commas(static_cast<std::int64_t>(result.plans)),
                                 with_commas(static_cast<std::int64_t>(result.evaluated)));
  const std::uint64_t slow = result.bounded + result.skipped;
  if (slow > 0) text += fmt::format(", {} slower by a lower bound", with_commas(static_cast<std::int64_t>(slow)));
  std::uint64_t impossible = 0;
  for (const auto& [reason, count] : result.infeasible) impossible += count;
  if (impossible > 0) text += fmt::format(", {} not possible", with_commas(static_cast<std::int64_t>(impossible)));
  if (result.unseen > 0) {
    text += fmt::format(", {} not looked at", with_commas(static_cast<std::int64_t>(result.unseen)));
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
    return fmt::format("{}", fmt::join(texts, " or "));
  };
  return fmt::format("global batch {} of {} tokens, {}",
                     all("training/global_batch", [](const Training& t) { return with_commas(t.global_batch); }),
                     all("training/sequence", [](const Training& t) { return with_commas(t.sequence); }),
                     all("training/dtype", [](const Training& t) { return enumerator_name(t.precision); }));
}

std::string joined(const std::vector<std::string>& texts) { return fmt::format("{}", fmt::join(texts, ", ")); }

std::string plan_text(const ParallelPlan& plan) {
  std::string text = fmt::format("tp {} pp {} dp {}", plan.tp, plan.pp, plan.dp);
  if (plan.cp > 1) text += fmt::format(" cp {}", plan.cp);
  if (plan.ep > 1) text += fmt::format(" ep {}", plan.ep);
  if (plan.vpp > 1) text += fmt::format(" vpp {}", plan.vpp);
  return text;
}

// The best change of a plan that the search did not try: of a field that it does not vary, or that the user gave.
std::string not_searched(const Report& report) {
  for (const Improvement& each : report.improvements) {
    if (each.set.empty()) continue;
    return fmt::format("  not searched: -{} {}: {}\n", duration_text(each.saves), with_flags(each.change),
                       to_flags(each.set, report.scenario));
  }
  return "";
}

std::string training_text(const SearchCase& found, const SearchGoals& goals, const Style& style) {
  std::string page;
  if (const auto time = training_of(found, goals)) {
    page += fmt::format("\n{}\n", style.bold(fmt::format("{:.4g} tokens with the fastest", time->tokens)));
    page += fmt::format("  {} (90 % interval {} to {}): {} steps, {} without failures{}\n",
                        style.bold(long_time(time->total)), long_time(time->low), long_time(time->high),
                        with_commas(static_cast<std::int64_t>(time->steps)), long_time(time->without_failures),
                        !goals.deadline          ? ""
                        : !in_time(found, goals) ? ", " + style.red("too late")
                                                 : ", " + style.green("in time") + not_certain(*time, goals));
    page += fmt::format("  goodput {:.1f} %: a failure every {}, a checkpoint of {}{} every {}\n", 100 * time->goodput,
                        long_time(time->time_between_failures), duration_text(time->checkpoint),
                        goals.reliability.asynchronous
                            ? fmt::format(" (training stands still for {})", duration_text(time->standstill))
                            : "",
                        long_time(time->interval));
    if (const auto unequal = found.result.answers.front().unequal_step) {
      const Seconds step = found.result.answers.front().report.step;
      page += fmt::format("  GPUs differ in speed by {:g} %: a step takes {}, {:+.1f} %\n", 100 * *goals.gpu_spread,
                          duration_text(*unequal), 100 * (*unequal / step - 1));
    }
    if (goals.reliability.repair) {
      page += fmt::format("  {} spare node{}: enough nodes {:.1f} % of the time\n", with_commas(time->spare_nodes),
                          time->spare_nodes == 1 ? "" : "s", 100 * time->whole);
    }
    if (std::isinf(time->gpu_hours)) return page;  // and so are energy and cost
    page += fmt::format("  {} GPU-hours{}\n", cost_text(std::floor(time->gpu_hours)),
                        time->spare_nodes > 0 ? ", with those of spare nodes" : "");
  }
  const auto energy = energy_of(found, goals);
  const bool shows_energy = energy && (goals.tokens || goals.objective == Objective::kEnergy);
  if (page.empty() && (shows_energy || cost_of(found, goals))) {
    page += fmt::format("\n{}\n", style.bold("With the fastest"));
  }
  if (shows_energy) {
    const Scenario& fastest = found.result.answers.front().report.scenario;
    page += fmt::format("  at most {}{}: each GPU at {:.0f} W, PUE {}\n", energy_text(*energy), of_what(goals),
                        fastest.cluster.gpu.board_power / units::W, fastest.facility.pue.value);
  }
  if (const auto cost = cost_of(found, goals)) {
    page +=
        fmt::format("  {} {}{}{}{}\n", cost_text(*cost), goals.prices->currency, of_what(goals), dated(*goals.prices),
                    !goals.budget             ? ""
                    : in_budget(found, goals) ? ", " + style.green("within the budget")
                                              : ", " + style.red("above the budget"));
  }
  for (const std::string& text : unknown_prices(goals, {&found, 1})) page += "  " + text + "\n";
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
    page += fmt::format("  {}  (90 % interval {} to {}){}\n", style.bold(duration_text(report.step)),
                        duration_text(report.step_low), duration_text(report.step_high), behind_text(answer));
    constexpr double kOften = 1.1;  // of long contexts: attention that is masked is a large part of the count
    const bool masked = report.mfu > kOften * report.mfu_causal;
    page += fmt::format("  MFU {:.1f} %{}, {} of {} ({:.1f} GiB free{}), network {}\n", 100 * report.mfu,
                        masked ? fmt::format(" ({:.1f} % with causal attention)", 100 * report.mfu_causal) : "",
                        bytes_text(report.memory.peak()), bytes_text(base.cluster.gpu.memory), headroom(report),
                        is_tight(report) ? ", tight: may run out" : "", duration_text(answer.network));
    page += fmt::format("  {}\n", command_of(answer, goals.from));
    if (&answer != &result.answers.front()) continue;
    page += not_searched(report);
    if (!found.advice.empty()) page += fmt::format("  {}\n", found.advice);
  }
  page += training_text(found, goals, style);
  add_sensitivity(page, found, style);
  add_reasons(page, result);
  return page;
}

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
      trained("sequence", "training/sequence", [](const Training& t) { return with_commas(t.sequence); }),
      trained("format", "training/dtype", [](const Training& t) { return enumerator_name(t.precision); })};
  std::erase_if(kept, [](const auto& cells) { return cells.size() == 1; });
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (differs(columns[i], i > 1)) kept.push_back(std::move(columns[i]));
  }
  for (std::vector<std::string>& each : kept) {
    std::size_t width = 0;
    for (const std::string& cell : each) width = std::max(width, cell.size());
    for (std::string& cell : each) cell.resize(width, ' ');
  }
  return kept;
}

std::string search_table(const std::vector<SearchCase>& cases, const SearchGoals& goals, const Style& style) {
  const bool has_prices = std::any_of(cases.begin(), cases.end(), [&](const SearchCase& each) {
    return price_of(each.base.cluster.gpu, goals).has_value();
  });
  std::string heading =
      fmt::format("{:<19}{:>7}  {:>9}  {:>12}  {:>6}  {:>8}", "GPU", "GPUs", "step", "tokens/s", "MFU", "memory");
  if (goals.tokens) heading += fmt::format("  {:>8}  {:>7}", "training", "goodput");
  const bool has_energy = goals.objective == Objective::kEnergy;
  const std::string_view each_trillion = goals.tokens ? "" : "/1e12";
  if (has_energy) heading += fmt::format("  {:>11}", fmt::format("energy{}", each_trillion));
  if (has_prices) heading += fmt::format("  {:>12}", fmt::format("{}{}", goals.prices->currency, each_trillion));
  std::string page;
  std::vector<std::string> models;
  for (const SearchCase& each : cases) {
    if (std::find(models.begin(), models.end(), each.base.model.name) == models.end())
      models.push_back(each.base.model.name);
  }
  const auto columns = columns_that_differ(cases, goals);
  const auto with_columns = [&](std::string_view gpu, std::size_t line) {
    std::string text = fmt::format("{:<19}", gpu);
    for (const std::vector<std::string>& column : columns) text += fmt::format("  {}", column[line]);
    return text;
  };
  heading = with_columns("GPU", 0) + heading.substr(19);
  page += style.bold(joined(models)) + "\n" + style.bold(heading + "  plan") + "\n";
  const bool interrupted = !cases.empty() && cases.back().result.interrupted;
  bool tight = false;
  const SearchCase *fastest = nullptr, *cheapest = nullptr, *cheapest_in_time = nullptr, *sparing = nullptr,
                   *least = nullptr, *most = nullptr;
  for (const SearchCase& each : cases) {
    page += fmt::format("{}{:>7}  ",
                        with_columns(each.base.cluster.gpu.id, static_cast<std::size_t>(&each - cases.data()) + 1),
                        with_commas(each.gpus));
    if (each.result.answers.empty()) {
      page += no_plan(each) + "\n";
      continue;
    }
    const Report& report = each.result.answers.front().report;
    page += fmt::format("{:>9}  {:>12}  {:>4.1f} %  {:>8}", duration_text(report.step),
                        with_commas(static_cast<std::int64_t>(report.tokens_per_second)), 100 * report.mfu,
                        bytes_text(report.memory.peak()));
    if (const auto time = training_of(each, goals)) {
      page += fmt::format("  {:>8}  {:>5.1f} %", long_time(time->total), 100 * time->goodput);
    }
    const auto cost = cost_of(each, goals);
    const auto energy = energy_of(each, goals);
    if (has_energy) page += fmt::format("  {:>11}", energy ? energy_text(*energy) : "not known");
    if (has_prices) page += fmt::format("  {:>12}", cost ? cost_text(*cost) : "no price");
    page += fmt::format("  {}{}{}\n", plan_text(report.scenario.plan), is_tight(report) ? ", tight" : "",
                        on_front(each, cases, goals) ? " *" : "");
    tight |= is_tight(report);
    const auto less = [&](const SearchCase* best, Spent spent) {
      const auto known = best == nullptr ? std::nullopt : amount(*best, goals, spent),
                 here = amount(each, goals, spent);
      return here && (!known || *here < *known);
    };
    if (fastest == nullptr || speed_of(each, goals) > speed_of(*fastest, goals)) fastest = &each;
    if (less(cheapest, Spent::kMoney)) cheapest = &each;
    if (in_time(each, goals) && less(cheapest_in_time, Spent::kMoney)) cheapest_in_time = &each;
    if (less(sparing, Spent::kEnergy)) sparing = &each;
    // Of as many GPUs, the faster ones.
    const auto precedes = [&](const SearchCase* best, bool by_gpus) {
      return best == nullptr || by_gpus || (each.gpus == best->gpus && speed_of(each, goals) > speed_of(*best, goals));
    };
    if (in_time(each, goals) && precedes(least, least != nullptr && each.gpus < least->gpus)) least = &each;
    if (in_budget(each, goals) && precedes(most, most != nullptr && each.gpus > most->gpus)) most = &each;
  }
  constexpr std::string_view kNoMore[] = {"no more GPUs", "no higher cost", "no more energy"};
  const Spent spent = spent_of(cases, goals);
  const bool all_known = std::all_of(cases.begin(), cases.end(), [&](const SearchCase& each) {
    return each.result.answers.empty() || amount(each, goals, spent).has_value();
  });
  page += fmt::format("  * no other line {}is faster with {}\n",
                      all_known                ? ""
                      : spent == Spent::kMoney ? "that has a price "
                                               : "whose energy is known ",
                      kNoMore[static_cast<std::size_t>(spent)]);
  if (tight) page += "  tight: may run out of memory\n";
  if (interrupted) {
    page +=
        style.red("  interrupted: the last line is the best so far, and what comes behind it was not searched") + "\n";
  }
  if (has_energy && !cases.empty())
    page +=
        fmt::format("  energy: at most; each GPU at its board power, PUE {}\n", cases.front().base.facility.pue.value);
  if (has_prices && !goals.prices->date.empty()) page += fmt::format("  prices of {}\n", goals.prices->date);
  for (const std::string& text : unknown_prices(goals, cases)) page += "  " + text + "\n";
  const auto show = [&](const SearchCase* found, std::string_view what) {
    if (found == nullptr) return;
    page += fmt::format("\n{}: {} x {}\n", style.bold(what), with_commas(found->gpus), found->base.cluster.gpu.id);
    if (const auto time = training_of(*found, goals)) {
      page += fmt::format("  {} (90 % interval {} to {}{})\n", long_time(time->total), long_time(time->low),
                          long_time(time->high), in_time(*found, goals) ? not_certain(*time, goals) : "");
    }
    page += fmt::format("  {}\n", command_of(found->result.answers.front(), goals.from));
  };
  show(fastest, "The fastest");
  if (fastest != nullptr) add_sensitivity(page, *fastest, style);
  show(cheapest, "The cheapest");
  if (cheapest_in_time != cheapest) show(cheapest_in_time, "The cheapest that is in time");
  if (has_energy) show(sparing, "The least energy");
  show(least, "The fewest GPUs of these that are in time");
  show(most, "The most GPUs of these that the budget buys");
  if (goals.budget && most == nullptr) page += "\n" + style.red("The budget buys none of these") + "\n";
  if (goals.deadline && least == nullptr) {
    page += "\n" + style.red(goals.finds_size ? "None of the sizes that were tried is in time"
                                              : "No cluster of these is in time");
    const auto time = fastest == nullptr ? std::nullopt : training_of(*fastest, goals);
    if (time) page += fmt::format("; the soonest takes {}", long_time(time->total));
    page += "\n";
  }
  return page;
}

std::string search_json(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  ordered_json json;
  json["schema"] = "ns-dist/search/1";
  json["version"] = version();
  std::uint64_t plans = 0, evaluated = 0, bounded = 0, skipped = 0, unseen = 0;
  double seconds = 0;
  bool interrupted = false;
  ordered_json infeasible = ordered_json::object(), examples = ordered_json::object();
  std::vector<const SearchAnswer*> answers;
  for (const SearchCase& each : cases) {
    const SearchResult& result = each.result;
    plans += result.plans;
    evaluated += result.evaluated;
    bounded += result.bounded;
    skipped += result.skipped;
    unseen += result.unseen;
    seconds += result.seconds;
    interrupted |= result.interrupted;
    for (const auto& [reason, count] : result.infeasible) {
      infeasible[reason] = infeasible.value(reason, std::uint64_t{0}) + count;
    }
    for (const auto& [reason, example] : result.examples) {
      if (!examples.contains(reason)) examples[reason] = with_flags(example);
    }
    for (const SearchAnswer& answer : result.answers) answers.push_back(&answer);
  }
  const auto rank = [&](const SearchAnswer* answer) {  // lower is better
    if (goals.objective == Objective::kCost) return cost_of(*answer, goals).value_or(kUnknown);
    if (goals.objective == Objective::kTime) return 1 / speed_of(*answer, goals);
    const auto energy = energy_of(*answer, goals);
    return energy ? *energy / kKilowattHour : kUnknown;
  };
  std::stable_sort(answers.begin(), answers.end(),
                   [&](const SearchAnswer* a, const SearchAnswer* b) { return rank(a) < rank(b); });
  // Plans that are in time and within the budget, where these are given, come first.
  std::stable_partition(answers.begin(), answers.end(), [&](const SearchAnswer* answer) {
    return (!goals.deadline || in_time(*answer, goals)) && (!goals.budget || in_budget(*answer, goals));
  });
  json["plans"] = ordered_json::array();
  for (const SearchAnswer* answer : answers) json["plans"].push_back(answer_json(*answer, goals));
  json["table"] = ordered_json::array();
  for (const SearchCase& each : cases) {
    ordered_json row = {{"model", each.base.model.id},
                        {"framework", each.base.framework},
                        {"gpu", each.base.cluster.gpu.id},
                        {"gpus", each.gpus}};
    if (const SearchAnswer* fastest = fastest_of(each)) {
      const Training& training = fastest->report.scenario.training;
      row["global_batch"] = training.global_batch;
      row["sequence"] = training.sequence;
      row["dtype"] = enumerator_name(training.precision);
      row["tight"] = is_tight(fastest->report);
    }
    for (const FabricLevel& level : each.base.cluster.levels) {
      row["fabrics"].push_back({{"id", level.fabric.id},
                                {"units", level.size},
                                {"bytes_per_s_per_gpu", level.bandwidth_per_gpu() / (units::B / units::s)}});
    }
    row["plans"] = each.result.answers.size();
    if (!each.result.answers.empty()) {
      const Report& report = each.result.answers.front().report;
      row["step_time_s"] = report.step / units::s;
      row["tokens_per_s"] = report.tokens_per_second;
      row["mfu"] = report.mfu;
      row["on_front"] = on_front(each, cases, goals);
      if (const auto time = training_of(each, goals)) row["training"] = training_json(*time);
      if (goals.deadline) row["in_time"] = in_time(each, goals);
      if (const auto cost = cost_of(each, goals)) row["cost"] = *cost;
      if (goals.budget) row["in_budget"] = in_budget(each, goals);
      if (const auto energy = energy_of(each, goals)) row["kwh_at_most"] = *energy / kKilowattHour;
    }
    if (!each.sensitivity.empty()) row["sensitivity"] = sensitivity_json(each.sensitivity);
    json["table"].push_back(std::move(row));
  }
  if (goals.prices)
    json["cost"] = {{"currency", goals.prices->currency},
                    {"of", goals.tokens ? "training" : "1e12 tokens"},
                    {"date", goals.prices->date}};
  if (const auto unknown = unknown_prices(goals, cases); !unknown.empty()) json["cost"]["unknown"] = unknown;
  json["space"] = plans;
  json["evaluated"] = evaluated;
  json["left_out"] = {{"by_step_without_sharing", bounded}, {"by_kernels", skipped}, {"not_looked_at", unseen}};
  json["infeasible"] = infeasible;
  json["infeasible_examples"] = examples;
  json["interrupted"] = interrupted;
  json["seconds"] = seconds;
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string search_csv(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; };
  const auto count = [](std::int64_t value) { return std::to_string(value); };
  std::vector<std::pair<const char*, std::string>> row;
  const auto fill = [&](const SearchAnswer& answer) {
    const Report& report = answer.report;
    const Scenario& scenario = report.scenario;
    const ParallelPlan& plan = scenario.plan;
    const Training& training = scenario.training;
    const std::vector<FabricLevel>& levels = scenario.cluster.levels;
    row = {{"model", scenario.model.id},
           {"framework", scenario.framework},
           {"gpu", scenario.cluster.gpu.id},
           {"gpus", count(report.ranks)},
           {"inside_nodes", fabric_text(levels.front())},
           {"between_nodes", fabric_text(levels.back())},
           {"global_batch", count(training.global_batch)},
           {"sequence", count(training.sequence)},
           {"dtype", std::string(enumerator_name(training.precision))},
           {"why", joined(answer.why)},
           {"step_time_s", number(report.step / units::s)},
           {"step_time_low_s", number(report.step_low / units::s)},
           {"step_time_high_s", number(report.step_high / units::s)},
           {"behind_s", number(answer.behind.longer / units::s)},
           {"behind_low_s", number(answer.behind.low / units::s)},
           {"behind_high_s", number(answer.behind.high / units::s)},
           {"tokens_per_s", number(report.tokens_per_second)},
           {"mfu", number(report.mfu)},
           {"memory_bytes", number(report.memory.peak() / units::B)},
           {"network_s", number(answer.network / units::s)},
           {"kinds_of_parallelism", count(answer.kinds)},
           {"tp", count(plan.tp)},
           {"cp", count(plan.cp)},
           {"pp", count(plan.pp)},
           {"dp", count(plan.dp)},
           {"ep", count(plan.ep)},
           {"vpp", count(plan.vpp)},
           {"schedule", plan.schedule},
           {"micro_batch", count(training.micro_batch)},
           {"zero", std::string(enumerator_name(plan.zero))},
           {"recompute", field_text(recomputation_of(plan))}};
    if (goals.tokens) {
      const auto time = training_of(answer, goals);
      row.emplace_back("training_s", time ? number(time->total / units::s) : "");
    }
    if (goals.prices) {
      const auto cost = cost_of(answer, goals);
      row.emplace_back(goals.tokens ? "cost" : "cost_of_1e12_tokens", cost ? number(*cost) : "");
    }
    row.emplace_back("command", command_of(answer, goals.from));
  };
  const auto line = [&](const auto& part) {
    std::vector<std::string> cells;
    for (const auto& cell : row) cells.push_back(csv_cell(std::string(part(cell))));
    return fmt::format("{}\n", fmt::join(cells, ","));
  };
  SearchAnswer none;  // for the heading
  none.report.scenario = cases.front().base;
  fill(none);
  std::string text = line([](const auto& cell) { return cell.first; });
  for (const SearchCase& each : cases) {
    for (const SearchAnswer& answer : each.result.answers) {
      fill(answer);
      text += line([](const auto& cell) { return cell.second; });
    }
  }
  return text;
}

}  // namespace ns_dist::cli
