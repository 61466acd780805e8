// Lines of `ns-dist list` that come from the catalog.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/catalog.h"

namespace ns_dist::cli {

struct ListRow {
  std::string id, name, facts = {};
  std::string text() const { return facts.empty() ? name : name + ": " + facts; }
  friend bool operator==(const ListRow&, const ListRow&) = default;
};

inline constexpr std::array kListedKinds = {CatalogKind::kGpu,    CatalogKind::kModel,     CatalogKind::kCluster,
                                            CatalogKind::kFabric, CatalogKind::kFramework, CatalogKind::kRuns};

// Reads every file of the kind. Errors: those of a file.
Result<std::vector<ListRow>> read_list_rows(const Catalog& catalog, CatalogKind kind);

// The rows of the compiled-in catalog, found when the tool was built (list_index/make_list_index.cc): reading its files
// takes ten times as long.
struct IndexRow {
  CatalogKind kind;
  std::string_view id, name, facts;
};
std::span<const IndexRow> list_index();

// From the index where the catalog is the compiled-in one.
Result<std::vector<ListRow>> list_rows(const Catalog& catalog, CatalogKind kind);

}  // namespace ns_dist::cli
