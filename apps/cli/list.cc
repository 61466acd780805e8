#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "arguments.h"
#include "commands.h"
#include "list_rows.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/network_model.h"
#include "ns_dist/operator_forms.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/sinks.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

template <CatalogKind kKind>
Result<std::vector<ListRow>> entries() {
  return list_rows(Catalog::standard(), kKind);
}

template <class Entries>
std::vector<ListRow> rows_from(const Entries& entries) {
  std::vector<ListRow> rows;
  for (const auto& entry : entries) rows.push_back({std::string(entry.name), std::string(entry.description)});
  return rows;
}

Result<std::vector<ListRow>> operators() {
  std::vector<ListRow> rows;
  for (const OperatorForm& form : operator_forms()) {
    rows.push_back({std::string(form.family), std::string(form.description)});
  }
  return rows;
}

Result<std::vector<ListRow>> schedules() {
  std::vector<ListRow> rows;
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    rows.push_back({std::string(schedule->name), std::string(schedule->description)});
  }
  return rows;
}

struct Listing {
  std::string_view name, summary;
  Result<std::vector<ListRow>> (*rows)();
  std::optional<CatalogKind> kind = {};  // of its files
};

constexpr std::array<Listing, 11> kListings = {{
    {"gpus", "what --gpu may name", entries<CatalogKind::kGpu>, CatalogKind::kGpu},
    {"models", "what --model may name", entries<CatalogKind::kModel>, CatalogKind::kModel},
    {"clusters", "what --cluster may name", entries<CatalogKind::kCluster>, CatalogKind::kCluster},
    {"fabrics", "what --intra and --inter may name", entries<CatalogKind::kFabric>, CatalogKind::kFabric},
    {"frameworks", "what --framework may name; with an id behind it, what that sets", entries<CatalogKind::kFramework>,
     CatalogKind::kFramework},
    {"runs", "measured steps that ns-dist validate --runs may name", entries<CatalogKind::kRuns>, CatalogKind::kRuns},
    {"schedules", "what --schedule may name", schedules},
    {"algorithms", "how collectives may run",
     [] { return Result<std::vector<ListRow>>(rows_from(network_algorithms())); }},
    {"protocols", "how collectives may move data",
     [] { return Result<std::vector<ListRow>>(rows_from(network_protocols())); }},
    {"operators", "what kernels can be forecast", operators},
    {"sinks", "files that timelines are written to",
     [] { return Result<std::vector<ListRow>>(rows_from(trace_sinks())); }},
}};

// What a framework sets is longer than a line: its name alone, but for programs.
std::string rendered(const std::vector<ListRow>& rows, bool json, bool names = false) {
  if (json) {
    nlohmann::ordered_json entries = nlohmann::ordered_json::array();
    for (const ListRow& row : rows) entries.push_back({{"id", row.id}, {"text", row.text()}});
    return dump_json(entries, 2);
  }
  std::size_t width = 0;
  for (const ListRow& row : rows) width = std::max(width, row.id.size());
  std::string text;
  for (const ListRow& row : rows) text += fmt::format("{:<{}}  {}\n", row.id, width, names ? row.name : row.text());
  return text;
}

int print_file(const Listing& listing, const std::string& id) {
  if (!listing.kind) {
    return report_error({ErrorCode::kUsage, fmt::format("\"{}\" has no file", id), "list",
                         "an id of gpus, models, clusters, fabrics, frameworks or runs"});
  }
  auto text = Catalog::standard().text(*listing.kind, id);
  if (!text) {
    text.error().where = fmt::format("list {}", listing.name);
    return report_error(text.error());
  }
  std::fputs(text->c_str(), stdout);
  return kAnswered;
}

}  // namespace

int list_command(int argc, const char* const* argv) {
  CLI::App app{
      "What can be named, with a line on each; and the files of it.\n  ns-dist list gpus\n  ns-dist list gpus h100 > "
      "mine.json",
      "list"};
  set_up(app);
  std::vector<std::string> names;
  names.reserve(kListings.size());
  for (const Listing& listing : kListings) names.emplace_back(listing.name);
  std::optional<std::string> what, id;
  bool json = false;
  app.add_option("what", what, fmt::format("{}", fmt::join(names, ", ")))->type_name("");
  app.add_option("id", id,
                 "of gpus, models, clusters, fabrics, frameworks, runs: print its file, for a copy of your own")
      ->type_name("");
  app.add_flag("--json", json, "print a JSON array of {id, text}");
  if (const auto done = parse(app, argc, argv)) return *done;

  if (!what) {
    std::vector<ListRow> rows;
    rows.reserve(kListings.size());
    for (const Listing& listing : kListings) rows.push_back({std::string(listing.name), std::string(listing.summary)});
    std::fputs(rendered(rows, json).c_str(), stdout);
    return kAnswered;
  }
  for (const Listing& listing : kListings) {
    if (listing.name != *what) continue;
    if (id) return print_file(listing, *id);
    const auto rows = listing.rows();
    if (!rows) return report_error(rows.error());
    std::fputs(rendered(*rows, json, listing.kind == CatalogKind::kFramework).c_str(), stdout);
    return kAnswered;
  }
  const std::string near = nearest_name(*what, names);
  return report_error({ErrorCode::kUsage, fmt::format("nothing called \"{}\" can be listed", *what), "list",
                       fmt::format("one of {}", fmt::join(names, ", ")), did_you_mean(near)});
}

}  // namespace ns_dist::cli
