#include "ns_dist/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "interrupts.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/simulator.h"
#include "other_sizes.h"
#include "search_output.h"
#include "search_page.h"
#include "searcher.h"
#include "sizes.h"
#include "sizing.h"
#include "sweep.h"
#include "tables.h"
#include "team_of_mpi.h"
#include "whole_training.h"

namespace ns_dist::cli {
namespace {

struct SearchFlags {
  WorkFlags work;
  std::string gpus, threads, csv, page, sweep, output;
  std::string within = "10";
  std::string objective = "time";
  TrainingFlags training;
  std::optional<std::string> deadline, budget;
  bool json = false, sensitivity = false;
};

// Headings of the flags that a sweep does not use.
constexpr const char *kWhatIsSearched = "What is searched", *kAnswer = "What comes back";

constexpr std::string_view kObjectives[] = {"time", "cost", "energy"};  // in the order of Objective

void describe(CLI::App& app) {
  const auto searched = searched_fields();
  for (const FieldDescription& description : scenario_fields()) {
    const std::string_view name = description.field.name;
    CLI::Option* option = app.get_option(description.flag);
    if (std::find(searched.begin(), searched.end(), name) != searched.end()) {
      option->description(fmt::format("{} [every useful value]", with_flags(description.field.help)));
    }
  }
}

// "256", "256,512", "256..16384": each twice the one before. Equal ones are taken once.
Result<std::vector<std::int64_t>> read_sizes(std::string_view text) {
  std::vector<std::int64_t> sizes;
  const auto add = [&sizes](std::int64_t size) {
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  };
  if (text.empty()) return sizes;
  for (const std::string_view part : split_at(text, ",")) {
    const std::string_view item = trimmed(part);
    const std::size_t dots = item.find("..");
    NS_TRY(const std::int64_t first, read_count(trimmed(item.substr(0, dots)), "--gpus", 1, kMostRanks));
    add(first);
    if (dots != std::string_view::npos) {
      NS_TRY(const std::int64_t last, read_count(trimmed(item.substr(dots + 2)), "--gpus", 1, kMostRanks));
      if (last < first) {
        return fail({ErrorCode::kUsage, fmt::format("the range {} is empty", item), "--gpus",
                     "the smaller number first", fmt::format("write {}..{}", last, first)});
      }
      for (std::int64_t size = first; size * 2 <= last;) add(size *= 2);
    }
  }
  return sizes;
}

// Whether commas belong to the one value that a flag has in a search.
bool has_one_value(const FieldDescription& description) {
  return !can_be_searched(description.field.name) && (description.is_list() || description.values.starts_with("FILE"));
}

// "--overlap, --stage-speed": the flags of these.
std::string flags_with_one_value() {
  std::vector<std::string> flags;
  for (const FieldDescription& description : scenario_fields()) {
    if (has_one_value(description)) flags.push_back(description.flag);
  }
  return fmt::format("{}", fmt::join(flags, ", "));
}

struct Requests {
  std::vector<SearchRequest> all;     // one for each space
  std::vector<FieldValues> separate;  // fields of which each value has spaces of its own
};

// Errors: every value that cannot be read, all at once; too many spaces.
Result<Requests> read_requests(const SearchFlags& flags) {
  SearchRequest common;
  std::vector<FieldValues> separate;
  std::vector<Error> errors;
  for (const FieldDescription& description : scenario_fields()) {
    const std::string_view field = description.field.name;
    const auto& text = flags.work.texts.at(field);
    if (!text) continue;
    if (has_one_value(description)) {
      if (auto one = readable(ScenarioSpec().set(field, std::string_view(*text))); !one) {
        errors.push_back(std::move(one.error()));
      }
      common.fixed.set(field, std::string_view(*text));
      continue;
    }
    auto values = read_values(field, *text);
    if (!values) {
      errors.push_back(std::move(values.error()));
    } else if (decides_machine(field)) {  // behind the others, where it has one value, too
      separate.push_back(*std::move(values));
    } else if (values->values.size() == 1) {
      common.fixed.set(field, std::string_view(values->values.front()));
    } else {
      (can_be_searched(field) ? common.listed : separate).push_back(*std::move(values));
    }
  }
  auto sizes = read_sizes(flags.gpus);
  if (!sizes) errors.push_back(sizes.error());
  if (!errors.empty()) return fail(join(std::move(errors)));
  NS_TRY(auto base, read_base_of(flags.work));
  if (base) {
    base->named = {};  // a search is free in what its report named
    common.from = std::make_shared<const Scenario>(*std::move(base));
  }

  constexpr double kMostSpaces = 10'000;
  double spaces = static_cast<double>(std::max<std::size_t>(1, sizes->size()));
  std::vector<std::string> lists;
  for (const FieldValues& each : separate) {
    if (each.values.size() == 1) continue;
    spaces *= static_cast<double>(each.values.size());
    lists.push_back(fmt::format("{} ({} values)", each.field, with_commas(std::ssize(each.values))));
  }
  if (sizes->size() > 1) lists.push_back(fmt::format("--gpus ({} values)", sizes->size()));
  if (spaces > kMostSpaces) {
    return fail({ErrorCode::kUsage, fmt::format("the lists make {:.0f} searches", spaces), "",
                 fmt::format("at most {:.0f}", kMostSpaces),
                 fmt::format("write fewer values of {}", fmt::join(lists, ", "))});
  }

  std::vector<SearchRequest> requests = {std::move(common)};
  for (const FieldValues& field : separate) {
    std::vector<SearchRequest> more;
    for (const SearchRequest& request : requests) {
      for (const std::string& value : field.values) {
        more.push_back(request);
        more.back().fixed.set(field.field, std::string_view(value));
      }
    }
    requests = std::move(more);
  }
  if (sizes->empty()) return Requests{std::move(requests), std::move(separate)};
  std::vector<SearchRequest> sized;
  for (const SearchRequest& request : requests) {
    for (const std::int64_t gpus : *sizes) {
      sized.push_back(request);
      sized.back().gpus = gpus;
    }
  }
  return Requests{std::move(sized), std::move(separate)};
}

Result<double> read_share(const std::string& text, std::string_view flag) {
  const std::string digits = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
  const auto percent = read_positive_number(digits, 1000);
  if (!percent) {
    return fail({ErrorCode::kUsage, percent.error().message, std::string(flag), "a percentage above 0",
                 fmt::format("write, for example, {} 10", flag)});
  }
  return *percent / 100;
}

Result<SearchGoals> read_goals(const SearchFlags& flags) {
  SearchGoals goals;
  goals.from = flags.work.from;
  if (flags.deadline) {
    NS_TRY(goals.deadline, read_duration(*flags.deadline, "--deadline"));
  }
  NS_TRY(const std::size_t objective, of_flag("--objective", read_name(flags.objective, kObjectives)));
  goals.objective = static_cast<Objective>(objective);
  if (flags.budget) {
    NS_TRY(goals.budget, read_amount(*flags.budget, "--budget", "money"));
  }
  if ((flags.budget || goals.objective == Objective::kCost) && !flags.training.prices) {
    return fail(
        {ErrorCode::kUsage, "what a GPU costs is not given", "--prices", "a file with the price of a GPU for an hour",
         "write, for example, {\"currency\": \"USD\", \"date\": \"2026-11-22\", \"gpu_hour\": {\"h100-sxm-80gb\": "
         "2.5}} with your own prices, and --prices FILE"});
  }
  if ((flags.budget || flags.deadline) && !flags.training.tokens) return without_tokens();
  NS_TRY(static_cast<WholeTraining&>(goals), read_training(flags.training));
  return goals;
}

Result<void> check_price(const Gpu& gpu, const SearchGoals& goals) {
  if (!goals.budget || price_of(gpu, goals)) return {};
  return fail({ErrorCode::kInvalidInput, fmt::format("there is no price of {}", gpu.id), "--prices",
               "the price of each GPU that is searched", fmt::format("add \"{}\" to \"gpu_hour\"", gpu.id)});
}

std::vector<Output> outputs_of(const SearchFlags& flags) {
  return {{"--csv", flags.csv}, {"--report", flags.page}, {"--json", flags.json ? "-" : ""}};
}

// What the command line asks.
struct Job {
  SearchFlags flags;
  SearchOptions options;
  std::vector<SearchRequest> requests;
  SearchGoals goals;
  std::string command;
};

void add_search_flags(CLI::App& app, SearchFlags& flags) {
  app.add_option(
         "--gpus", flags.gpus,
         "size of the cluster, needed without --nodes, --deadline and --budget; 256..16384: each twice the one before")
      ->type_name("LIST")
      ->group(kWhatIsSearched);
  app.add_option("--within", flags.within, "other answers are at most so much slower than the fastest [10]")
      ->type_name("PERCENT")
      ->group(kWhatIsSearched);
  app.add_option("--objective", flags.objective,
                 "time|cost|energy: what the table marks, and the order of --json; on one machine all agree [time]")
      ->type_name("NAME")
      ->group(kWhatIsSearched);
  app.add_option("--threads", flags.threads, "threads [one a core]")->type_name("N")->group(kWhatIsSearched);
  add_training_flags(app, flags.training);
  app.add_option("--deadline", flags.deadline, "as in 30d: which cluster is in time? Without --gpus: the least one")
      ->type_name("TIME")
      ->group(kWholeTraining);
  app.add_option("--budget", flags.budget,
                 "for --tokens, in the currency of --prices, as in 2M: the most GPUs that it buys, and their plan")
      ->type_name("N")
      ->group(kWholeTraining);
  app.add_flag("--json", flags.json, "print one JSON object")->group(kAnswer);
  app.add_option("--csv", flags.csv, "write the answers, one line each")->type_name("FILE")->group(kAnswer);
  app.add_option("--report", flags.page, "write one HTML page for a meeting, with a chart of step time against memory")
      ->type_name("FILE")
      ->group(kAnswer);
  app.add_option("--sweep", flags.sweep, "forecast every combination of a file's values, a line each")
      ->type_name("FILE")
      ->group("A table instead of a search");
  app.add_option("--output", flags.output,
                 "of a sweep: JSON lines, or a CSV where the name ends in .csv; an existing file is continued")
      ->type_name("FILE")
      ->group("A table instead of a search");
  app.add_flag("--sensitivity", flags.sensitivity,
               "what does 1 % better of each part of the machine change, with the fastest plan?")
      ->group(kAnswer);
  add_work_flags(app, flags.work, "machine/gpus");  // a list, here
  describe(app);
}

// Reads the command line. Returns the exit code where there is nothing left to do.
std::optional<int> read_job(int argc, const char* const* argv, bool leads, Job& job) {
  CLI::App app{
      fmt::format(
          "Which plan is best on this cluster? Flags of the work take lists and ranges, as in --tp 1,2,4,8\n"
          "--micro-batch 1..8, but not {}.\n"
          "Flags with [every useful value] are varied where they are not given; the others keep their defaults.",
          flags_with_one_value()),
      "search"};
  set_up(app);
  SearchFlags& flags = job.flags;
  add_search_flags(app, flags);
  if (const auto done = parse(app, argc, argv)) return *done;

  const auto threads = read_threads(flags.threads);
  if (!threads) return report_error(threads.error());
  job.options.threads = *threads;
  const auto within = read_share(flags.within, "--within");
  if (!within) return report_error(within.error());
  job.options.within = *within;
  if (flags.sweep.empty() != flags.output.empty()) {
    return report_error({ErrorCode::kUsage, "a sweep has two files", flags.sweep.empty() ? "--sweep" : "--output",
                         "what to forecast and where to write it",
                         "write --sweep FILE.json --output FILE.jsonl, or FILE.csv"});
  }
  if (!flags.sweep.empty()) {
    for (const CLI::Option* option : app.get_options()) {
      const std::string group = option->get_group(), name = option->get_name();
      if (option->count() == 0 || name == "--threads") continue;
      if (group != kWhatIsSearched && group != kWholeTraining && group != kAnswer) continue;
      return report_error(
          {ErrorCode::kUsage, "a sweep does not use it", name, "flags of the work, --threads", "leave it out"});
    }
    return std::nullopt;
  }
  auto requests = read_requests(flags);
  if (!requests) return report_error(requests.error());
  job.requests = std::move(requests->all);
  auto goals = read_goals(flags);
  if (!goals) return report_error(goals.error());
  job.goals = *std::move(goals);
  job.goals.listed = job.requests.front().listed;
  job.goals.separate = std::move(requests->separate);
  if (!leads) return std::nullopt;
  if (auto writable = check_outputs(outputs_of(flags), inputs_of(flags.work, flags.training)); !writable) {
    return report_error(writable.error());
  }
  job.command = command_line("ns-dist search", argc, argv, app, {"--csv", "--report", "--json", "--threads"});
  return std::nullopt;
}

// Searches every machine. Errors: those of the spaces, and GPUs without a price where there is a budget. All of them
// are checked before the first is searched.
Result<void> search_machines(Job& job, const Catalog& catalog, Searcher& searcher) {
  const bool sized = !job.flags.gpus.empty() || job.flags.work.texts.at("machine/nodes");
  if ((job.goals.deadline || job.goals.budget) && !sized) {
    job.goals.finds_size = true;
    for (const SearchRequest& request : job.requests) {
      NS_TRY(const Cluster cluster, searched_cluster(request, catalog));
      NS_TRY_VOID(check_price(cluster.gpu, job.goals));
    }
    NS_TRY_VOID(check_not_read(outputs_of(job.flags), catalog.inputs()));
    for (const SearchRequest& request : job.requests) {
      NS_TRY_VOID(search_sizes(request, job.goals, catalog, searcher));
    }
    return {};
  }
  std::vector<SearchSpace> spaces;
  std::optional<Error> size;  // of the first size that is not one of the machine
  for (const SearchRequest& request : job.requests) {
    if (!spaces.empty() && searcher.told_to_stop()) break;
    auto space = searcher.space(request);
    if (!space && space.error().where == "machine/gpus") {
      if (job.requests.size() > 1) warn(fmt::format("left out: {}", to_text(space.error())));
      if (!size) size = std::move(space.error());
      continue;
    }
    if (!space) return fail(std::move(space.error()));
    NS_TRY_VOID(check_price(space->base().cluster.gpu, job.goals));
    // Two names of one GPU or model are searched once, whatever the catalog had read before.
    Scenario base = space->base();
    const bool known = std::any_of(spaces.begin(), spaces.end(), [&](const SearchSpace& each) {
      base.files = each.base().files;
      return each.gpus() == space->gpus() && each.base() == base;
    });
    if (!known) spaces.push_back(*std::move(space));
  }
  if (spaces.empty() && size) return fail(*std::move(size));
  NS_TRY_VOID(check_not_read(outputs_of(job.flags), catalog.inputs()));
  for (const SearchSpace& space : spaces) {
    if (searcher.interrupted()) break;
    NS_TRY_VOID(searcher.add(space));
  }
  return {};
}

int write_answers(const Job& job, const Catalog& catalog, std::vector<SearchCase> cases) {
  if (!job.flags.csv.empty()) {
    if (auto done = write_text(job.flags.csv, search_csv(cases, job.goals)); !done) return report_error(done.error());
  }
  if (!job.flags.page.empty()) {
    if (auto done = write_text(job.flags.page, search_page(cases, job.goals, job.command)); !done) {
      return report_error(done.error());
    }
  }
  const bool in_vain = job.goals.finds_size && job.goals.deadline && !in_time(cases.front(), job.goals);
  const bool is_one = cases.size() == 1 && job.requests.size() == 1 && !in_vain;
  if (is_one) {
    const auto began = std::chrono::steady_clock::now();
    cases.front().advice = better_size(job.requests.front(), cases.front(), job.options, catalog);
    cases.front().result.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  std::FILE* const stream = stream_of_answer(job.flags.json, outputs_of(job.flags));
  const Style style = style_of(stream);
  const std::string page = job.flags.json ? search_json(cases, job.goals)
                           : is_one       ? search_summary(cases.front(), job.goals, style)
                                          : search_table(cases, job.goals, style);
  std::fputs(page.c_str(), stream);
  return kAnswered;
}

}  // namespace

std::vector<std::string> search_flags() { return flags_of(add_search_flags); }

int search_command(int argc, const char* const* argv) {
  auto team = team_of_mpi();
  if (!team) return report_error(team.error());
  MpiTeam* const members = team->get();
  const bool leads = members == nullptr || members->member() == 0;
  Job job;
  const auto done = read_job(argc, argv, leads, job);
  if (!all_ready(members, !done)) return done.value_or(kInputAtFault);
  const std::atomic<bool>& interrupted = stop_at_interrupt();
  if (!job.flags.sweep.empty()) {
    return sweep(job.flags.sweep, job.flags.output, job.flags.work, job.options.threads, interrupted, members);
  }
  job.options.watch.stop = &interrupted;
  job.options.team = members;
  const Catalog catalog = Catalog::standard();
  Searcher searcher(catalog, job.options, job.flags.sensitivity, job.goals.gpu_spread);
  if (auto searched = search_machines(job, catalog, searcher); !searched) return report_error(searched.error());
  if (!leads) return kAnswered;
  std::vector<SearchCase> cases = std::move(searcher).take();
  if (auto compared = compare_costs(cases, job.goals); !compared) return report_error(compared.error());
  return write_answers(job, catalog, std::move(cases));
}

}  // namespace ns_dist::cli
