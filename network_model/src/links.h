// What NCCL reaches on a link: protocols, hop latencies, efficiencies.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "ns_dist/cluster.h"

namespace ns_dist::network {

enum class Protocol { kLl, kLl128, kSimple };
inline constexpr std::size_t kProtocolCount = 3;
inline constexpr std::array<Protocol, kProtocolCount> kProtocols = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};

using PerProtocol = std::array<double, kProtocolCount>;
constexpr double of(const PerProtocol& values, Protocol protocol) { return values[static_cast<std::size_t>(protocol)]; }

// One level of the cluster in plain doubles (seconds, bytes per second), for the inner loop.
struct Link {
  std::string_view name;   // of the fabric's kind
  bool network = false;    // crosses the node's border through network ports
  double peak = 0;         // data sheet, of one GPU when all its peers send, one direction
  double bandwidth = 0;    // peak times efficiency
  PerProtocol ring_hop{};  // seconds from a rank to the next
  PerProtocol tree_hop{};
};

Link link_of(const FabricLevel& level);

// Launch and set-up of a collective, seconds.
double base_latency_ring(Protocol protocol);
double base_latency_tree(Protocol protocol);

// The part of a link's bandwidth that carries data: LL spends half on flags (8 of 16 bytes), LL128 8 bytes of 128.
double payload_share(Protocol protocol);

}  // namespace ns_dist::network
