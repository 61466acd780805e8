#include "list_rows.h"

namespace ns_dist::cli {

Result<std::vector<ListRow>> list_rows(const Catalog& catalog, CatalogKind kind) {
  if (!catalog.is_built_in()) return read_list_rows(catalog, kind);
  std::vector<ListRow> rows;
  for (const IndexRow& row : list_index()) {
    if (row.kind == kind) rows.push_back({std::string(row.id), std::string(row.name), std::string(row.facts)});
  }
  return rows;
}

}  // namespace ns_dist::cli
