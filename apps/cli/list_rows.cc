#include "list_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ns_dist/parameters.h"
#include "ns_dist/scenario.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

// Entries of a folder of the catalog, each with the facts that `describe(id)` finds in its file.
template <class Describe>
Result<std::vector<ListRow>> rows_of(const Catalog& catalog, CatalogKind kind, Describe describe) {
  std::vector<ListRow> rows;
  for (const CatalogEntry& entry : catalog.list(kind)) {
    NS_TRY(std::string facts, describe(entry.id));
    if (!entry.aliases.empty()) facts += fmt::format(" ({})", fmt::join(entry.aliases, ", "));
    rows.push_back({entry.id, entry.name, std::move(facts)});
  }
  return rows;
}

// "989.4 TFLOP/s bf16" of the best 16-bit format; older GPUs have fp16 only, the oldest neither, or (P4) in name only.
std::string peak_text(const Gpu& gpu) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    if (gpu.matrix_peak(dtype) > FlopsPerSecond() && gpu.matrix_peak(dtype) >= gpu.vector[DType::kFp32]) {
      return fmt::format("{:.4g} TFLOP/s {}", gpu.matrix_peak(dtype) / (units::TFLOP / units::s), name_of(dtype));
    }
  }
  return "no rate";
}

Result<std::vector<ListRow>> gpus(const Catalog& catalog) {
  return rows_of(catalog, CatalogKind::kGpu, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Gpu gpu, catalog.gpu(id));
    return fmt::format("{}, {} at {}", peak_text(gpu), bytes_text(gpu.memory), bandwidth_text(gpu.memory_bandwidth));
  });
}

Result<std::vector<ListRow>> models(const Catalog& catalog) {
  return rows_of(catalog, CatalogKind::kModel, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Model model, catalog.model(id));
    const double parameters = model_parameters(model).total();
    const auto text =
        parameters >= 1e9 ? fmt::format("{:.4g} B", parameters / 1e9) : fmt::format("{:.4g} M", parameters / 1e6);
    return fmt::format("{} parameters, {} layers of {}, sequences of {}", text, model.layers, model.hidden,
                       model.sequence);
  });
}

Result<std::vector<ListRow>> clusters(const Catalog& catalog) {
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

Result<std::vector<ListRow>> fabrics(const Catalog& catalog) {
  return rows_of(catalog, CatalogKind::kFabric, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Fabric fabric, catalog.fabric(id));
    return fmt::format("{} a direction of a {}, {}", to_text(fabric.bandwidth),
                       is_network(fabric.kind) ? "port" : "GPU", to_text(fabric.latency));
  });
}

Result<std::vector<ListRow>> frameworks(const Catalog& catalog) {
  return rows_of(catalog, CatalogKind::kFramework, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const Framework framework, catalog.framework(id));
    std::string text;
    for (const Assignment& assignment : framework.set) {
      const FieldDescription* field = find_field(assignment.field);
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", field != nullptr ? field->flag : assignment.field,
                          assignment.text);
    }
    return text;
  });
}

Result<std::vector<ListRow>> runs(const Catalog& catalog) {
  return rows_of(catalog, CatalogKind::kRuns, [&](const std::string& id) -> Result<std::string> {
    NS_TRY(const PublishedRuns published, catalog.runs(id));
    return fmt::format("{} steps", published.runs.size());
  });
}

}  // namespace

Result<std::vector<ListRow>> read_list_rows(const Catalog& catalog, CatalogKind kind) {
  switch (kind) {
    case CatalogKind::kGpu:
      return gpus(catalog);
    case CatalogKind::kModel:
      return models(catalog);
    case CatalogKind::kCluster:
      return clusters(catalog);
    case CatalogKind::kFabric:
      return fabrics(catalog);
    case CatalogKind::kFramework:
      return frameworks(catalog);
    case CatalogKind::kRuns:
      return runs(catalog);
  }
  return std::vector<ListRow>();
}

}  // namespace ns_dist::cli
