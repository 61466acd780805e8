// What NCCL reaches on a link: generations, protocols, hop latencies, bandwidths.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/names.h"

namespace ns_dist::network {

enum class Protocol { kLl, kLl128, kSimple };

// Fabrics that behave alike; measured corrections are kept per class and generation.
enum class LinkClass { kNvlink, kPcie, kXgmi, kNetwork };

}  // namespace ns_dist::network
namespace ns_dist {
template <>
inline constexpr auto kEnumeratorNames<network::Protocol> = std::to_array<std::string_view>({"ll", "ll128", "simple"});
template <>
inline constexpr auto kEnumeratorNames<network::LinkClass> = std::to_array<std::string_view>({"nvlink", "pcie", "xgmi",
                                                                                              "network"});
}  // namespace ns_dist
namespace ns_dist::network {

inline constexpr std::array kProtocols = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};
inline constexpr std::size_t kProtocolCount = kProtocols.size();
using PerProtocol = std::array<double, kProtocolCount>;
constexpr double of(const PerProtocol& values, Protocol protocol) { return values[static_cast<std::size_t>(protocol)]; }

// NCCL's view of a GPU generation.
enum class Generation { kVolta, kAmpere, kHopper, kBlackwell };

// The generation whose constants describe the architecture of a GPU best ("ampere", "blackwell-ultra", "cdna3", ...).
Generation nccl_generation_of(std::string_view architecture);

LinkClass link_class_of(FabricKind kind);

inline constexpr std::int64_t kOpenRing = -1;

// One level of the cluster in plain doubles (seconds, bytes per second), for the inner loop.
struct Link {
  std::string_view name;  // of the fabric's kind
  LinkClass link_class = LinkClass::kNvlink;
  Generation generation = Generation::kHopper;
  bool nvls = false;     // the switch reduces and multicasts (NVLink SHARP)
  double peak = 0;       // data sheet, of one GPU when all its peers send, one direction
  double bandwidth = 0;  // peak times the share that long messages reach
  // The same of a GPU whose peers leave it the level's links: what its ports give.
  double port_peak = 0, port_bandwidth = 0;
  // What all GPUs have of their ports, each: less where they share them.
  double shared_peak = 0, shared_bandwidth = 0;
  bool common_ports = false;  // one port of a GPU leads to all levels of this class: networks, and switches of NVLink
  PerProtocol ring_hop{};     // seconds from a rank to the next
  PerProtocol tree_hop{};
  double nvls_hop = 0;
  double nvls_tree_hop = 0;
  std::int64_t mesh = 0;    // units that have a link of their own to each other one; 0: not so, or not known how many
  std::int64_t ring = 0;    // units in a dimension of a torus (kOpenRing: as many as take part); 0: all reach all
  double clock_factor = 1;  // of everything that the GPU's SMs do: latencies against those of NCCL's tuning

  bool network() const { return link_class == LinkClass::kNetwork; }
  // What a copy of a byte that stays on its GPU takes of the link's time for one, where SMs make it beside their sends
  // at the link's speed times `share`. Where a link is slow, memory is much faster, and the copy takes no time.
  double own_share(double share) const {
    return network() || link_class == LinkClass::kPcie ? 0 : share * clock_factor;
  }
};

Link link_of(const FabricLevel& level, const Gpu& gpu);
// One a level. What leaves a node passes the GPU's PCIe and the ports of each network further in, and is no faster.
std::vector<Link> links_of(const Cluster& cluster);
// Whether a GPU sends into both levels by the same ports.
bool share_ports(const Link& a, const Link& b);

// Launch and set-up of a collective, seconds.
double base_latency_ring(Protocol protocol, const Link& link);
double base_latency_tree(Protocol protocol, const Link& link);

// What a collective that crosses a network takes beyond its hops: the proxy threads on the hosts pick it up and report
// back.
inline constexpr double kNetworkStart = 13e-6;  // s; same source as the hops of trees over a network

// NCCL starts one channel for a few kilobytes and all of them for more: the factor by which latencies grow with size.
double channel_growth(double bytes);

// Bus bandwidth that a protocol reaches where the links give `bus`, `nodes` nodes wide.
double ring_bandwidth(Protocol protocol, double bus, Generation generation, std::int64_t nodes);
double tree_bandwidth(Protocol protocol, double bus, Generation generation, std::int64_t nodes);
double nvls_bandwidth(double bus, Generation generation);
// Of one channel over NVLink, bytes per second.
double channel_bandwidth(Generation generation);

}  // namespace ns_dist::network
