// Fits the network model on the rows of a table.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/collective_table.h"

namespace ns_dist {

Result<NetworkCalibration> fit_rows(std::span<const CollectiveRow> rows, const ClusterResolver& resolve,
                                    const NetworkFitOptions& options) {
  std::vector<Cluster> clusters;
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  std::vector<CollectiveMeasurement> measurements;
  for (const CollectiveRow& row : rows) {
    NS_TRY(const double latency_ms, measured_ms(row.latency_ms, row.bad_latency, ""));
    const auto [found, added] = index.emplace(std::pair(row.gpu, row.cluster), clusters.size());
    if (added) {
      NS_TRY(Cluster cluster, resolve(row.gpu, row.cluster));
      clusters.push_back(std::move(cluster));
    }
    measurements.push_back({found->second, row.kind, row.ranks, row.gpus_per_node, row.size, latency_ms * units::ms,
                            row.integer, row.imbalance});
  }
  return fit_network(clusters, measurements, options);
}

}  // namespace ns_dist
