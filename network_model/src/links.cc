#include "links.h"

namespace ns_dist::network {
namespace {

constexpr double kMicrosecond = 1e-6;

// NCCL 2.30, src/graph/tuning.cc: baseLatencies and hardware latencies of ring and tree, us, for LL, LL128, Simple.
constexpr PerProtocol kRingBase = {6.6, 14.0, 8.4};
constexpr PerProtocol kTreeBase = {6.8, 14.0, 8.4};

struct Hops {
  PerProtocol ring, tree;
};
constexpr Hops kNvlinkHops = {{0.6, 1.9, 3.4}, {0.6, 1.25, 4.0}};
constexpr Hops kPcieHops = {{1.0, 2.5, 5.7}, {1.0, 1.9, 4.0}};
constexpr Hops kNetworkHops = {{2.7, 4.0, 14.0}, {5.0, 8.5, 14.0}};

// NCCL's constants hold for the scale-up links that it was tuned on; a fabric that states another latency shifts them.
// Its network constants, in contrast, are the software's share: NCCL adds the device's latency to them.
constexpr double kNominalScaleUpLatency = 0.5;  // us

bool is_network(FabricKind kind) {
  switch (kind) {
    case FabricKind::kNvlink:
    case FabricKind::kNvswitch:
    case FabricKind::kXgmi:
    case FabricKind::kPcie:
      return false;
    case FabricKind::kInfiniband:
    case FabricKind::kRoce:
    case FabricKind::kEthernet:
    case FabricKind::kEfa:
    case FabricKind::kSlingshot:
    case FabricKind::kOmniPath:
      return true;
  }
  return true;
}

// Share of the data-sheet bandwidth that a long message reaches.
double efficiency(FabricKind kind) {
  switch (kind) {
    // NCCL 2.30, tuning.cc and topo.h: 20.0 of 25 GB/s a link on Volta and Ampere, 20.6 of 25 on Hopper, 40.1 of 50 on
    // Blackwell.
    case FabricKind::kNvlink:
    case FabricKind::kNvswitch:
      return 0.80;
    // RCCL's all-reduce on MI300X: 310-330 GB/s of 7 x 64 GB/s (ROCm documentation, MI300X system validation).
    case FabricKind::kXgmi:
      return 0.70;
    // PCIe 4.0 x16 carries 24-26 GB/s of payload of 32 GB/s: 128b/130b coding and transaction headers.
    case FabricKind::kPcie:
      return 0.75;
    // 46-48 GB/s of a 400 Gbit/s port, 24 of a 200 Gbit/s port: InfiniBand headers and credits.
    case FabricKind::kInfiniband:
      return 0.94;
    // RoCE v2 adds UDP and IP headers to each 4,096-byte packet, and congestion control keeps a margin.
    case FabricKind::kRoce:
    case FabricKind::kSlingshot:
    case FabricKind::kOmniPath:
      return 0.90;
    // 1,500-byte or jumbo frames through the kernel or a software protocol (SRD).
    case FabricKind::kEthernet:
    case FabricKind::kEfa:
      return 0.80;
  }
  return 0.80;
}

Hops hops_of(FabricKind kind) {
  if (is_network(kind)) return kNetworkHops;
  return kind == FabricKind::kPcie ? kPcieHops : kNvlinkHops;
}

}  // namespace

Link link_of(const FabricLevel& level) {
  using units::B;
  using units::s;
  using units::us;
  Link link;
  link.name = name_of(level.fabric.kind);
  link.network = is_network(level.fabric.kind);
  link.peak = level.bandwidth_per_gpu() / (B / s);
  link.bandwidth = efficiency(level.fabric.kind) * link.peak;
  const Hops hops = hops_of(level.fabric.kind);
  const double shift = level.fabric.latency / us - (link.network ? 0.0 : kNominalScaleUpLatency);
  const auto shifted = [&](const PerProtocol& hop) {
    PerProtocol seconds{};
    for (std::size_t i = 0; i < kProtocolCount; ++i) {
      const double hop_us = hop[i] + shift;
      seconds[i] = kMicrosecond * (hop_us > 0.1 ? hop_us : 0.1);  // stores and polls of the protocol alone
    }
    return seconds;
  };
  link.ring_hop = shifted(hops.ring);
  link.tree_hop = shifted(hops.tree);
  return link;
}

double base_latency_ring(Protocol protocol) { return kMicrosecond * of(kRingBase, protocol); }
double base_latency_tree(Protocol protocol) { return kMicrosecond * of(kTreeBase, protocol); }

double payload_share(Protocol protocol) {
  constexpr PerProtocol kShare = {0.5, 120.0 / 128.0, 1.0};
  return of(kShare, protocol);
}

}  // namespace ns_dist::network
