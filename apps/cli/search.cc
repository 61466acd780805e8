#include "ns_dist/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "search_output.h"
#include "tables.h"

namespace ns_dist::cli {
namespace {

// Set by an interrupt; a second one ends the program.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  interrupted.store(true);
  std::signal(SIGINT, SIG_DFL);
}

struct Flags {
  WorkFlags work;
  std::string gpus, threads, csv;
  std::string within = "10";
  bool json = false;
};

// Flags whose values are tried one machine after the other, not within one space.
constexpr std::string_view kMachines[] = {"model", "machine/gpu", "machine/cluster", "machine/nodes"};

bool is_machine(std::string_view field) {
  return std::find(std::begin(kMachines), std::end(kMachines), field) != std::end(kMachines);
}

void describe(CLI::App& app) {
  const auto searched = searched_fields();
  for (const FieldDescription& description : scenario_fields()) {
    const std::string_view name = description.field.name;
    CLI::Option* option = app.get_option(description.flag);
    if (std::find(searched.begin(), searched.end(), name) != searched.end()) {
      option->description(fmt::format("{} [every value]", with_flags(description.field.help)));
    }
  }
}

// "256", "256,512", "256..16384": each twice the one before.
Result<std::vector<std::int64_t>> read_sizes(std::string_view text) {
  std::vector<std::int64_t> sizes;
  for (std::string_view rest = text; !text.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t dots = item.find("..");
    NS_TRY(const std::int64_t first, read_count(item.substr(0, dots), "--gpus", 1, kMostRanks));
    sizes.push_back(first);
    if (dots != std::string_view::npos) {
      NS_TRY(const std::int64_t last, read_count(item.substr(dots + 2), "--gpus", 1, kMostRanks));
      if (last < first) {
        return fail({ErrorCode::kUsage,
                     fmt::format("the range {} is empty", item),
                     "--gpus",
                     "the smaller number first",
                     fmt::format("write {}..{}", last, first),
                     {}});
      }
      while (sizes.back() * 2 <= last) sizes.push_back(sizes.back() * 2);
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return sizes;
}

// One request for each machine that the flags describe. Errors: every value that cannot be read, all at once.
Result<std::vector<SearchRequest>> read_requests(const Flags& flags) {
  SearchRequest common;
  std::vector<FieldValues> machines;
  std::vector<Error> errors;
  for (const FieldDescription& description : scenario_fields()) {
    const std::string_view field = description.field.name;
    const auto& text = flags.work.texts.at(field);
    if (!text) continue;
    if (!can_be_searched(field) && !is_machine(field)) {
      ScenarioSpec one;
      one.set(field, std::string_view(*text));
      if (auto readable = check_values(one); !readable) {
        readable.error().code = ErrorCode::kUsage;
        errors.push_back(std::move(readable.error()));
      }
      common.fixed.set(field, std::string_view(*text));
      continue;
    }
    auto values =
        text->empty() ? Result<FieldValues>(FieldValues{std::string(field), {"on"}}) : read_values(field, *text);
    if (!values) {
      errors.push_back(std::move(values.error()));
    } else if (is_machine(field)) {
      machines.push_back(*std::move(values));
    } else if (values->values.size() > 1) {
      common.listed.push_back(*std::move(values));
    } else {
      common.fixed.set(field, std::string_view(values->values.front()));
    }
  }
  if (const auto overlap = read_overlap_of(flags.work); !overlap) {
    errors.push_back(overlap.error());
  } else {
    common.fixed.assignments.insert(common.fixed.assignments.end(), overlap->assignments.begin(),
                                    overlap->assignments.end());
  }
  auto sizes = read_sizes(flags.gpus);
  if (!sizes) errors.push_back(sizes.error());
  if (!errors.empty()) return fail(join(std::move(errors)));
  NS_TRY(auto base, read_base_of(flags.work));
  if (base) common.from = std::make_shared<const Scenario>(*std::move(base));

  std::vector<SearchRequest> requests = {std::move(common)};
  for (const FieldValues& machine : machines) {
    std::vector<SearchRequest> more;
    for (const SearchRequest& request : requests) {
      for (const std::string& value : machine.values) {
        more.push_back(request);
        more.back().fixed.set(machine.field, std::string_view(value));
      }
    }
    requests = std::move(more);
  }
  if (sizes->empty()) return requests;
  std::vector<SearchRequest> sized;
  for (const SearchRequest& request : requests) {
    for (const std::int64_t gpus : *sizes) {
      sized.push_back(request);
      sized.back().gpus = gpus;
    }
  }
  return sized;
}

Result<double> read_share(const std::string& text, std::string_view flag) {
  const std::string digits = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
  const auto percent = read_positive_number(digits, 1000);
  if (!percent) {
    return fail({ErrorCode::kUsage,
                 percent.error().message,
                 std::string(flag),
                 "a percentage above 0",
                 fmt::format("write, for example, {} 10", flag),
                 {}});
  }
  return *percent / 100;
}

}  // namespace

int search_command(int argc, const char* const* argv) {
  CLI::App app{
      "Which plan is best on this cluster? Flags of the plan and of the training take lists and ranges, as in\n"
      "--tp 1,2,4,8 --micro-batch 1..8; every value of what is not given is tried.",
      "search"};
  set_up(app);
  Flags flags;
  const char *what = "What is searched", *group = "What comes back";
  app.add_option("--gpus", flags.gpus, "size of the cluster; 256..16384: each twice the one before")
      ->type_name("LIST")
      ->group(what);
  app.add_option("--within", flags.within, "other answers are at most so much slower than the fastest [10]")
      ->type_name("PERCENT")
      ->group(what);
  app.add_option("--threads", flags.threads, "threads [one a core]")->type_name("N")->group(what);
  app.add_flag("--json", flags.json, "print one JSON object")->group(group);
  app.add_option("--csv", flags.csv, "write the answers, one line each")->type_name("FILE")->group(group);
  add_work_flags(app, flags.work);
  describe(app);
  if (const auto done = parse(app, argc, argv)) return *done;

  SearchOptions options;
  const auto threads = read_threads(flags.threads);
  if (!threads) return report_error(threads.error());
  options.threads = *threads;
  const auto within = read_share(flags.within, "--within");
  if (!within) return report_error(within.error());
  options.within = *within;
  auto requests = read_requests(flags);
  if (!requests) return report_error(requests.error());
  if (auto writable = check_output(flags.csv, {}); !writable) return report_error(writable.error());

  const Catalog catalog = Catalog::standard();
  std::vector<SearchSpace> spaces;
  for (SearchRequest& request : *requests) {
    auto space = SearchSpace::make(std::move(request), catalog);
    if (!space) return report_error(space.error());
    spaces.push_back(*std::move(space));
  }
  std::signal(SIGINT, on_interrupt);
  options.stop = &interrupted;
  std::vector<SearchCase> cases;
  for (const SearchSpace& space : spaces) {
    if (interrupted) break;
    Progress progress(fmt::format("{} GPUs", with_commas(space.gpus())), 0);
    options.progress = [&](double share) { progress.share(share); };
    const auto session = Session::make(space.base());
    if (!session) return report_error(session.error());
    auto result = search(space, *session, options);
    progress.done();
    if (!result) return report_error(result.error());
    cases.push_back({space.base(), space.gpus(), *std::move(result)});
  }
  if (!flags.csv.empty()) {
    if (auto written = write_text(flags.csv, search_csv(cases, flags.work.from)); !written) {
      return report_error(written.error());
    }
  }
  std::string page;
  if (flags.json) {
    page = search_json(cases, flags.work.from);
  } else if (cases.size() == 1) {
    page = search_summary(cases.front(), flags.work.from, style_of_standard_output());
  } else {
    page = search_table(cases, flags.work.from, style_of_standard_output());
  }
  std::fputs(page.c_str(), stdout);
  return kAnswered;
}

}  // namespace ns_dist::cli
