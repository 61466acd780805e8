// How long a collective takes on a cluster: NCCL's algorithms and protocols on the fabric levels that the group spans.
//
//   NS_TRY(const std::unique_ptr<NetworkCost> network, make_network_model(cluster));
//   network->forecast({CollectiveKind::kAllReduce, 64 * MiB, RankGroup{0, {{8, 1}}}});
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ns_dist/cluster.h"
#include "ns_dist/cost.h"
#include "ns_dist/names.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/result.h"

namespace ns_dist {

enum class NetworkModelKind { kNccl, kAstra };  // kAstra: ASTRA-Sim's unaware formulas, which know no other option
template <>
inline constexpr auto kEnumeratorNames<NetworkModelKind> = std::to_array<std::string_view>({"nccl", "astra"});

struct NetworkModelOptions {
  NetworkModelKind model = NetworkModelKind::kNccl;
  // Of the plan. kAstra times a group of all ranks in another way; 0: all GPUs. kNccl: idle GPUs of an oversubscribed
  // unit leave it to the others; 0: those beyond the group are idle.
  std::int64_t ranks = 0;
  std::string algorithm = "auto";  // a name of network_algorithms(), or "auto": the fastest one
  std::string protocol = "auto";   // a name of network_protocols(), or "auto": the fastest one
  bool strict = true;              // false: collectives without this algorithm or protocol take the fastest one
  bool calibrated = true;          // false: NCCL's published constants alone
  std::shared_ptr<const NetworkCalibration> calibration = nullptr;  // null: the one compiled in
};

// Errors: an unknown algorithm or protocol (naming those there are), a cluster without levels, a level without
// bandwidth, with a negative latency, or open (size 0) below the outermost one.
Result<std::unique_ptr<NetworkCost>> make_network_model(const Cluster& cluster,
                                                        const NetworkModelOptions& options = {});

// What the PCIe port of a GPU passes to the network between nodes, where the GPU's network ports could take more than a
// tenth more.
std::optional<BytesPerSecond> pcie_limit(const Cluster& cluster);

struct NetworkAlgorithm {
  std::string_view name, description;
  bool automatic = true;  // chosen by "auto" where it is the fastest; otherwise only on request
};

// What `--algorithm` may name, in the order in which ties are broken.
std::span<const NetworkAlgorithm> network_algorithms();

// NCCL's protocols: "ll", "ll128", "simple".
std::span<const NetworkAlgorithm> network_protocols();

}  // namespace ns_dist
