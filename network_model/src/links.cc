#include "links.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ns_dist/network_model.h"

namespace ns_dist::network {
namespace {

constexpr double kMicrosecond = 1e-6, kGigabyte = 1e9;

// All numbers of this table: NCCL 2.30, src/graph/tuning.cc and topo.h, for latencies in us and bandwidths in GB/s.
constexpr PerProtocol kRingBase = {6.6, 14.0, 8.4};
constexpr PerProtocol kTreeBase = {6.8, 14.0, 8.4};

struct Hops {
  PerProtocol ring, tree;
};
constexpr Hops kNvlinkHops = {{0.6, 1.9, 3.4}, {0.6, 1.25, 4.0}};
constexpr Hops kPcieHops = {{1.0, 2.5, 5.7}, {1.0, 1.9, 4.0}};
constexpr Hops kNetworkHops = {{2.7, 4.0, 14.0}, {5.0, 8.5, 14.0}};
constexpr double kNvlsHop = 25.0, kNvlsTreeHop = 20.9;

struct GenerationConstants {
  std::array<double, 3> ll_max_bus;  // on 1, 2 and more nodes
  double nvlink_efficiency;          // NCCL's bandwidth of a link over its data sheet's
  double nvls_efficiency;
  double channel;  // a ring's, with LL128
};
constexpr std::array<GenerationConstants, 4> kGenerations = {{
    {{39.0, 39.0, 20.4}, 20.0 / 25.0, 0, 20.0},      // Volta
    {{87.7, 22.5, 19.0}, 20.0 / 25.0, 0, 20.0},      // Ampere
    {{141.0, 45.0, 35.0}, 20.6 / 25.0, 0.85, 36.7},  // Hopper
    {{282.0, 90.0, 70.0}, 40.1 / 50.0, 0.74, 40.0},  // Blackwell
}};
constexpr double kLlShare = 0.5;          // 4 bytes of data in 8
constexpr double kRingLl128Share = 0.92;  // 120 bytes of data in 128, rounded down by NCCL
constexpr double kTreeShare = 0.92;
constexpr double kTreeLlShare = 1 / 3.8;
constexpr double kTreeLl128InNode = 7.0 / 9.0;
constexpr double kTreeLl128Beyond = 120.0 / 128.0;

const GenerationConstants& constants_of(Generation generation) {
  return kGenerations[static_cast<std::size_t>(generation)];
}

// Share of the data-sheet bandwidth that a long message reaches.
double efficiency(FabricKind kind, Generation generation) {
  switch (kind) {
    case FabricKind::kNvlink:
    case FabricKind::kNvswitch:
      return constants_of(generation).nvlink_efficiency;
    // RCCL's all-reduce on MI300X: 310-330 GB/s of 7 x 64 GB/s (ROCm documentation, MI300X system validation).
    case FabricKind::kXgmi:
    case FabricKind::kUalink:  // nobody measured it
      return 0.70;
    // PCIe 4.0 x16 carries 24-26 GB/s of payload of 32 GB/s: 128b/130b coding and transaction headers.
    case FabricKind::kPcie:
      return 0.75;
    // 46-48 GB/s of a 400 Gbit/s port, 24 of a 200 Gbit/s port: InfiniBand headers and credits.
    case FabricKind::kInfiniband:
      return 0.94;
    // RoCE v2 adds UDP and IP headers to each packet, and congestion control keeps a margin: 75 of 100 GB/s a node were
    // measured on two nodes of eight A100 with eight 100 Gbit/s ports; the newer ports of the others reach 0.9.
    case FabricKind::kRoce:
      return 0.85;
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

const Hops& hops_of(LinkClass link_class) {
  switch (link_class) {
    case LinkClass::kNvlink:
    case LinkClass::kXgmi:
      return kNvlinkHops;
    case LinkClass::kPcie:
      return kPcieHops;
    case LinkClass::kNetwork:
      return kNetworkHops;
  }
  return kNetworkHops;
}

}  // namespace

Generation nccl_generation_of(std::string_view architecture) {
  if (architecture == "pascal" || architecture == "volta") return Generation::kVolta;
  if (architecture == "turing" || architecture == "ampere" || architecture == "ada") return Generation::kAmpere;
  if (generation_of(architecture) == "blackwell") return Generation::kBlackwell;
  return Generation::kHopper;
}

LinkClass link_class_of(FabricKind kind) {
  if (is_network(kind)) return LinkClass::kNetwork;
  if (kind == FabricKind::kXgmi || kind == FabricKind::kUalink) return LinkClass::kXgmi;
  return kind == FabricKind::kPcie ? LinkClass::kPcie : LinkClass::kNvlink;
}

Link link_of(const FabricLevel& level, const Gpu& gpu) {
  Link link;
  link.name = name_of(level.fabric.kind);
  link.link_class = link_class_of(level.fabric.kind);
  link.generation = nccl_generation_of(gpu.architecture);
  link.nvls = !level.ring && level.fabric.kind == FabricKind::kNvswitch && gpu.vendor == "nvidia" &&
              constants_of(link.generation).nvls_efficiency > 0;
  link.peak = level.bandwidth_per_gpu() / (units::B / units::s);
  const double reached = efficiency(level.fabric.kind, link.generation);
  link.bandwidth = reached * link.peak;
  link.port_peak = level.ring ? link.peak : link.peak * level.oversubscription;
  link.port_bandwidth = reached * link.port_peak;
  if (const double latency = level.fabric.latency / units::s; link.network() && latency > 0) {
    // No more is on its way than the buffers of the channels hold, two for each port (NCCL, NCCL_BUFFSIZE: 4 MiB),
    // until the receiver says that they are free. It matters beyond some tens of microseconds: between sites.
    constexpr double kBuffer = 4.0 * 1024 * 1024, kChannels = 2;
    const double most = kChannels * std::max(1.0, level.nics_per_gpu) * kBuffer / (2 * latency);
    link.bandwidth = std::min(link.bandwidth, most);
    link.port_bandwidth = std::min(link.port_bandwidth, most);
  }
  link.shared_peak = link.port_peak, link.shared_bandwidth = link.port_bandwidth;
  link.common_ports = !level.ring && (link.network() || is_switch_of_node(level.fabric.kind));
  if (level.ring) link.ring = level.size > 0 ? level.size : kOpenRing;
  if (level.fully_connected() && !level.fabric.uneven_mesh && level.size > 0) link.mesh = level.mesh_units(level.size);
  // NCCL's latencies were tuned on H100 (1980 MHz). What takes time in them are instructions of the SMs, so they grow
  // as the clock falls; measured small collectives on A100 (1410 MHz) agree.
  constexpr double kTunedClock = 1980e6;  // Hz
  const double clock = gpu.boost_clock / units::Hz;
  if (clock > 0) link.clock_factor = std::clamp(kTunedClock / clock, 0.5, 2.0);
  const double hop_factor = link.network() ? 1 : link.clock_factor;  // the proxy threads of hosts send over a network
  // A fabric states its latency as the hop of the LL protocol; the other protocols' hops are that much longer or
  // shorter than NCCL's. Never below the stores and polls of the protocol alone.
  constexpr double kLeastHop = 0.1;  // us
  const Hops& hops = hops_of(link.link_class);
  const double shift = level.fabric.latency / units::us - of(hops.ring, Protocol::kLl);
  // To its network hops NCCL adds what the device reports as its own latency. For trees the sum, 7.7 us, agrees with
  // small all-reduces of 16 and 128 H100 (46-48 and 94-100 us: 8 us for each of the doublings in between, twice).
  const double tree_shift = link.network() ? level.fabric.latency / units::us : shift;
  for (std::size_t i = 0; i < kProtocolCount; ++i) {
    link.ring_hop[i] = kMicrosecond * hop_factor * std::max(hops.ring[i] + shift, kLeastHop);
    link.tree_hop[i] = kMicrosecond * hop_factor * std::max(hops.tree[i] + tree_shift, kLeastHop);
  }
  link.nvls_hop = kMicrosecond * hop_factor * std::max(kNvlsHop + shift, kLeastHop);
  link.nvls_tree_hop = kMicrosecond * (kNvlsTreeHop + (link.network() ? tree_shift : 0));
  return link;
}

// PCIe between a GPU and its NICs on the data sheet, bytes per second; 0: not known. Every NIC hangs on PCIe; boards
// have a port for each GPU behind a switch of the GPU's own generation. Of a superchip each NIC has a port of its own:
// the link to its CPU leads to it, too (Vera Rubin NVL72: 1.6 Tbit/s a GPU by two NICs of 16 lanes each).
static double pcie_of(const Cluster& cluster) {
  double ports = 1;
  if (cluster.gpu.host && cluster.levels.size() > cluster.node_levels()) {
    ports = std::max(ports, cluster.levels[cluster.node_levels()].nics_per_gpu);
  }
  return ports * (cluster.gpu.pcie_bandwidth / (units::B / units::s));
}

static double pcie_share(const Gpu& gpu) { return efficiency(FabricKind::kPcie, nccl_generation_of(gpu.architecture)); }

std::vector<Link> links_of(const Cluster& cluster) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  double peak = kAny, bandwidth = kAny;                // of a GPU's way out, so far
  double shared_peak = kAny, shared_bandwidth = kAny;  // the same where all GPUs send
  if (const double pcie = pcie_of(cluster); pcie > 0) peak = pcie, bandwidth = pcie_share(cluster.gpu) * pcie;
  std::vector<Link> links;
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    const FabricLevel level = cluster.used_level(i);
    Link& link = links.emplace_back(link_of(level, cluster.gpu));
    if (level.ring || (!link.network() && link.link_class != LinkClass::kPcie)) continue;  // links of their own
    if (link.network()) {
      const double share = cluster.port_share(i), all_peak = share * link.port_peak,
                   all_bandwidth = share * link.port_bandwidth;
      link.port_peak = std::min(link.port_peak, peak);
      link.port_bandwidth = std::min(link.port_bandwidth, bandwidth);
      link.peak = std::min({link.peak, link.port_peak, shared_peak});
      link.bandwidth = std::min({link.bandwidth, link.port_bandwidth, shared_bandwidth});
      link.shared_peak = shared_peak = std::min({shared_peak, all_peak, link.port_peak});
      link.shared_bandwidth = shared_bandwidth = std::min({shared_bandwidth, all_bandwidth, link.port_bandwidth});
    }
    peak = std::min(peak, link.port_peak);
    bandwidth = std::min(bandwidth, link.port_bandwidth);
  }
  return links;
}

bool share_ports(const Link& a, const Link& b) {
  return a.common_ports && b.common_ports && a.link_class == b.link_class;
}

double base_latency_ring(Protocol protocol, const Link& link) {
  return kMicrosecond * link.clock_factor * of(kRingBase, protocol);
}
double base_latency_tree(Protocol protocol, const Link& link) {
  return kMicrosecond * link.clock_factor * of(kTreeBase, protocol);
}

double channel_growth(double bytes) {
  // Latencies measured on A100, H200 and B200 stand still below 4 KiB, rise by 15-45 % and stand still from 64 KiB on.
  constexpr double kFirst = 4096, kLast = 65536, kGrowth = 0.25;
  if (bytes <= kFirst) return 1;
  if (bytes >= kLast) return 1 + kGrowth;
  return 1 + kGrowth * std::log2(bytes / kFirst) / std::log2(kLast / kFirst);
}

namespace {

// Beyond one node the host's CPU decides: the row of Ampere stands for AMD's, that of Volta for all others. DGX A100
// and its like have AMD's, the hosts of other GPUs Intel's or NVIDIA's.
double ll_bandwidth(double bus, Generation generation, std::int64_t nodes) {
  const std::size_t width = nodes <= 1 ? 0 : nodes == 2 ? 1 : 2;
  if (nodes > 1 && generation != Generation::kAmpere) generation = Generation::kVolta;
  return std::min(constants_of(generation).ll_max_bus[width] * kGigabyte, kLlShare * bus);
}

}  // namespace

double ring_bandwidth(Protocol protocol, double bus, Generation generation, std::int64_t nodes) {
  switch (protocol) {
    case Protocol::kLl:
      return ll_bandwidth(bus, generation, nodes);
    case Protocol::kLl128:
      return kRingLl128Share * bus;
    case Protocol::kSimple:
      return bus;
  }
  return bus;
}

double tree_bandwidth(Protocol protocol, double bus, Generation generation, std::int64_t nodes) {
  bus *= kTreeShare;
  switch (protocol) {
    case Protocol::kLl:
      return std::min(bus * kTreeLlShare, ll_bandwidth(bus, generation, nodes));
    case Protocol::kLl128:
      return bus * (nodes <= 1 ? kTreeLl128InNode : kTreeLl128Beyond);
    case Protocol::kSimple:
      return bus;
  }
  return bus;
}

double nvls_bandwidth(double bus, Generation generation) { return bus * constants_of(generation).nvls_efficiency; }

double channel_bandwidth(Generation generation) { return constants_of(generation).channel * kGigabyte; }

}  // namespace ns_dist::network

namespace ns_dist {

std::optional<BytesPerSecond> pcie_limit(const Cluster& cluster) {
  const double pcie = network::pcie_share(cluster.gpu) * network::pcie_of(cluster);
  for (const FabricLevel& level : cluster.levels) {
    const network::Link link = network::link_of(level, cluster.gpu);
    if (!level.ring && link.network() && pcie > 0 && link.port_bandwidth > 1.1 * pcie)
      return pcie * units::B / units::s;
  }
  return std::nullopt;
}

}  // namespace ns_dist
