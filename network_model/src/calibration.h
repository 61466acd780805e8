// Which measured correction holds for a group.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "algorithms.h"
#include "correction.h"
#include "ns_dist/network_fit.h"

namespace ns_dist::network {

// The fallback of `kind`: the collective whose corrections it takes where it was not measured itself.
CollectiveKind measured_like(CollectiveKind kind);

// Bytes from which most machines are bound by bandwidth. Shorter messages have an interval of their own.
inline constexpr double kLongMessage = 1 << 20;

// The wider of the two intervals narrows over this range of sizes on the other's side: what makes it wide, most often a
// change of protocols, does not end at one size.
inline constexpr double kNarrowingOctaves = 4;

inline constexpr double kQuantile = 1.645;  // standard deviations from the middle of a normal distribution to its 95 %

// Half of the 90 % interval of ln(time) by NCCL's constants, of transfers that go directly from GPU to GPU: ln 1.25.
inline constexpr double kDirectSpread = 0.223;

struct Corrected {
  enum class Source {
    kMeasured,      // on this family (or cluster), this collective and this number of ranks
    kOthers,        // on other families, collectives or numbers of ranks
    kUnknownRoute,  // nowhere: between two routes that transfers over PCIe may take
  };
  Correction correction;
  double deviation = 0;        // of the logarithm of time, from kLongMessage
  double deviation_short = 0;  // below
  Source source = Source::kOthers;
  bool found = false;  // false: no measurement applies; `correction` changes nothing
  bool own = false;    // measured on this very cluster
  bool users = false;  // by the user's calibration, not one that is compiled in
  // Of one server whose transfers pass the host's memory: others with this GPU may transfer directly.
  bool may_be_direct = false;
  // The ranks that were measured: in the correction of groups of more ranks in a node than that, and of all groups
  // across nodes. 0: neither.
  std::int64_t least_ranks = 0, most_ranks = 0;
  std::int64_t ranks_per_node = 0;         // across nodes: of the measured groups
  double least_bytes = 0, most_bytes = 0;  // that were measured; 0: not known
  double link = 0;                         // bytes per second of the measured GPUs on this level; 0: not known

  // Share of the doublings of a group, and of the octaves of a size, that nobody measured: 0.25 for 16 ranks after 8.
  double unmeasured(const Call& call) const;
  // Whether what was measured across nodes, or on sizes, is more than a factor of two away.
  bool is_far(const Call& call) const;
  // Of a message on another machine than the measured one. Does not jump at kLongMessage.
  double deviation_of(double bytes) const;
};

// Groups inside a node by their number of ranks; the last entry is for all that are larger than what was measured.
inline constexpr std::size_t kMostMeasuredRanks = 8;
using CorrectedByRanks = std::array<Corrected, kMostMeasuredRanks + 2>;

// The corrections of one cluster, looked up once.
class Calibration {
 public:
  Calibration() = default;
  Calibration(const NetworkCalibration& calibration, const Cluster& cluster);

  // The correction of a call by `transport`; null where no measurement applies.
  const Corrected* find(const Call& call, Transport transport) const;

 private:
  struct Shape {
    CollectiveKind kind = CollectiveKind::kAllReduce;
    LinkClass link_class = LinkClass::kNetwork;
    Transport transport = Transport::kMessages;
    bool integer = false;
    std::int64_t ranks = 2;
    Corrected corrected;
  };
  // The nearest of `own_` to a call, on its outermost level; null: there is none.
  const Corrected* nearest_own(const Call& call, Transport transport) const;

  // Whether scale_up_ has an entry for groups of so many ranks.
  static bool in_table(LinkClass link_class, std::int64_t ranks);

  std::array<std::vector<CorrectedByRanks>, 2>
      scale_up_;            // NVLink, PCIe: by row; empty when the cluster has no such level
  std::vector<Shape> own_;  // of this very cluster: all but groups that scale_up_ holds
};

}  // namespace ns_dist::network
