#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/network_model.h"
#include "ns_dist/parameters.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/sinks.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

struct Row {
  std::string id, text;
};

// Entries of a folder of the catalog, each with the facts that `describe(id)` finds in its file.
template <class Describe>
Result<std::vector<Row>> rows_of(const Catalog& catalog, CatalogKind kind, Describe describe) {
  std::vector<Row> rows;
  for (const CatalogEntry& entry : catalog.list(kind)) {
    NS_TRY(std::string facts, describe(entry.id));
    if (!entry.aliases.empty()) facts += fmt::format(" ({})", fmt::join(entry.aliases, ", "));
    rows.push_back({entry.id, fmt::format("{}: {}", entry.name, facts)});
  }
  return rows;
}

// "66.9 TFLOP/s" of the best 16-bit format; older GPUs have fp16 only, the oldest neither.
std::string peak_text(const Gpu& gpu) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    if (gpu.matrix_peak(dtype) > FlopsPerSecond()) {
      return fmt::format("{:.4g} TFLOP/s {}", gpu.matrix_peak(dtype) / (units::TFLOP / units::s), name_of(dtype));
    }
  }
  return "no rate";
}

Result<std::vector<Row>> gpus() {
  const Catalog catalog = Catalog::standard();
  return rows_of(catalog, CatalogKind::kGpu, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Gpu gpu, catalog.gpu(id));
    return fmt::format("{}, {} at {}", peak_text(gpu), bytes_text(gpu.memory), to_text(gpu.memory_bandwidth));
  });
}

Result<std::vector<Row>> models() {
  const Catalog catalog = Catalog::standard();
  return rows_of(catalog, CatalogKind::kModel, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Model model, catalog.model(id));
    const double parameters = model_parameters(model).total();
    const auto text =
        parameters >= 1e9 ? fmt::format("{:.4g} B", parameters / 1e9) : fmt::format("{:.4g} M", parameters / 1e6);
    return fmt::format("{} parameters, {} layers of {}, sequences of {}", text, model.layers, model.hidden,
                       model.sequence);
  });
}

Result<std::vector<Row>> clusters() {
  const Catalog catalog = Catalog::standard();
  return rows_of(catalog, CatalogKind::kCluster, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Cluster cluster, catalog.cluster(id));
    std::string text = cluster.gpu.id;
    for (const FabricLevel& level : cluster.levels) {
      text +=
          level.size > 0 ? fmt::format(", {} x {}", level.size, level.fabric.id) : fmt::format(", {}", level.fabric.id);
    }
    return text;
  });
}

Result<std::vector<Row>> fabrics() {
  const Catalog catalog = Catalog::standard();
  return rows_of(catalog, CatalogKind::kFabric, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Fabric fabric, catalog.fabric(id));
    return fmt::format("{} a port, {}", to_text(fabric.bandwidth), to_text(fabric.latency));
  });
}

template <class Entries>
std::vector<Row> rows_from(const Entries& entries) {
  std::vector<Row> rows;
  for (const auto& entry : entries) rows.push_back({std::string(entry.name), std::string(entry.description)});
  return rows;
}

Result<std::vector<Row>> schedules() {
  std::vector<Row> rows;
  for (const PipelineSchedule* schedule : pipeline_schedules()) {
    rows.push_back({std::string(schedule->name), std::string(schedule->description)});
  }
  return rows;
}

struct Listing {
  std::string_view name, summary;
  Result<std::vector<Row>> (*rows)();
};

constexpr std::array<Listing, 9> kListings = {{
    {"gpus", "what --gpu may name", gpus},
    {"models", "what --model may name", models},
    {"clusters", "what --cluster may name", clusters},
    {"fabrics", "what --intra and --inter may name", fabrics},
    {"schedules", "what --schedule may name", schedules},
    {"algorithms", "how collectives may run", [] { return Result<std::vector<Row>>(rows_from(network_algorithms())); }},
    {"protocols", "how collectives may move data",
     [] { return Result<std::vector<Row>>(rows_from(network_protocols())); }},
    {"operators", "what kernels can be forecast",
     [] { return Result<std::vector<Row>>(rows_from(operator_families())); }},
    {"sinks", "files that timelines are written to", [] { return Result<std::vector<Row>>(rows_from(trace_sinks())); }},
}};

std::string rendered(const std::vector<Row>& rows, bool json) {
  if (json) {
    nlohmann::ordered_json entries = nlohmann::ordered_json::array();
    for (const Row& row : rows) entries.push_back({{"id", row.id}, {"text", row.text}});
    return entries.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.id.size());
  std::string text;
  for (const Row& row : rows) text += fmt::format("{:<{}}  {}\n", row.id, width, row.text);
  return text;
}

}  // namespace

int list_command(int argc, const char* const* argv) {
  CLI::App app{"What can be named, with a line on each.", "list"};
  set_up(app);
  std::vector<std::string> names;
  names.reserve(kListings.size());
  for (const Listing& listing : kListings) names.emplace_back(listing.name);
  std::string what;
  bool json = false;
  app.add_option("what", what, fmt::format("{}", fmt::join(names, ", ")))->type_name("");
  app.add_flag("--json", json, "print a JSON array of {id, text}");
  if (const auto done = parse(app, argc, argv)) return *done;

  if (what.empty()) {
    std::vector<Row> rows;
    rows.reserve(kListings.size());
    for (const Listing& listing : kListings) rows.push_back({std::string(listing.name), std::string(listing.summary)});
    std::fputs(rendered(rows, json).c_str(), stdout);
    return kAnswered;
  }
  for (const Listing& listing : kListings) {
    if (listing.name != what) continue;
    const auto rows = listing.rows();
    if (!rows) return report_error(rows.error());
    std::fputs(rendered(*rows, json).c_str(), stdout);
    return kAnswered;
  }
  const std::string near = nearest_name(what, names);
  return report_error({ErrorCode::kUsage,
                       fmt::format("nothing called \"{}\" can be listed", what),
                       "list",
                       fmt::format("one of {}", fmt::join(names, ", ")),
                       near.empty() ? "" : fmt::format("did you mean \"{}\"?", near),
                       {}});
}

}  // namespace ns_dist::cli
