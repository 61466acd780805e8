// ASTRA-Sim's network yml: any text is either refused with a line, or reads back as it was written, and what it
// describes is either forecast in a finite time or refused.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ns_dist/astra_network.h"
#include "ns_dist/network_model.h"
#include "tests/unit/network_model/clusters.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  const auto read = read_network_yml(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.yml");
  if (!read) {
    NS_EXPECTS(!read.error().where.empty());
    return 0;
  }
  const auto again = read_network_yml(to_network_yml(*read), "written.yml");
  NS_EXPECTS(again.has_value() && again->dimensions.size() == read->dimensions.size());
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    const auto time = astra_time_ns(*read, kind, 1 << 20);
    NS_EXPECTS(!time || *time >= 0);
  }
  const Cluster cluster = from_astra(*read, test::dgx_a100().gpu);
  const auto model = make_network_model(cluster);
  if (!model) return 0;
  const auto forecast = (*model)->forecast({CollectiveKind::kAllReduce, 64 * units::MiB, RankGroup{0, {{2, 1}}}});
  NS_EXPECTS(!forecast || std::isfinite(forecast->latency / units::s));
  return 0;
}
