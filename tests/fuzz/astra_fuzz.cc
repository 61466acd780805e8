// ASTRA-Sim's network yml and system json, with a zero byte between them: read or refused with a place; what was read
// is written and read back as the same network, and times collectives or says why not.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ns_dist/astra_formulas.h"
#include "ns_dist/astra_network.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = text.find('\0');
  const std::string yml = text.substr(0, end), json = end == std::string::npos ? "{}" : text.substr(end + 1);
  const Result<AstraSystem> system = read_astra_system(yml, "yml", json, "json");
  if (!system) {
    NS_EXPECTS(!system.error().where.empty());
    return 0;
  }
  const Result<AstraSystem> again = read_astra_system(to_network_yml(*system), "yml", json, "json");
  NS_EXPECTS(again.has_value() && again->npus() == system->npus());
  const Result<AstraNetwork> network = AstraNetwork::make(*system);
  if (!network || system->npus() > 64) return 0;
  std::vector<Rank> all;
  for (Rank rank = 0; rank < system->npus(); ++rank) all.push_back(rank);
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
    for (const std::int64_t late : {0, 7}) {
      std::vector<std::int64_t> times(all.size(), 0);
      times.back() = late;
      if (!network->collective(kind, 4096, all, times)) continue;
      for (const std::int64_t time : times) NS_EXPECTS(time >= 0);
    }
  }
  return 0;
}
