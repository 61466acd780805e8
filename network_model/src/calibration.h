// Which measured correction holds for a group.
#pragma once

#include <array>
#include <vector>

#include "algorithms.h"
#include "correction.h"
#include "ns_dist/network_fit.h"

namespace ns_dist::network {

// The collective whose measurements stand for `kind` where nobody measured it.
CollectiveKind measured_like(CollectiveKind kind);

// Architectures that share their corrections: "blackwell-ultra" counts as "blackwell".
std::string_view family_of(std::string_view architecture);

// Bytes from which bandwidth decides on most machines: intervals of shorter messages are apart.
inline constexpr double kLongMessage = 1 << 20;

struct Corrected {
  Correction correction;
  double deviation = 0;        // of the logarithm of time, from kLongMessage
  double deviation_short = 0;  // below
  bool measured = false;       // on this family (or cluster), this collective and this number of ranks
  bool known = false;          // false: nothing near enough was measured, the correction is none
};

// The corrections of one cluster, looked up once.
class Calibration {
 public:
  Calibration() = default;
  Calibration(const NetworkCalibration& calibration, const Cluster& cluster);

  // The correction for a group; null where nothing that was measured is near enough.
  const Corrected* find(const Call& call, Means means) const;

 private:
  static constexpr std::size_t kMostRanks = 8;  // measured; the entry beyond stands for all larger groups
  using ByRanks = std::array<Corrected, kMostRanks + 2>;

  struct Shape {
    CollectiveKind kind = CollectiveKind::kAllReduce;
    std::int64_t ranks = 2, ranks_per_node = 2;
    Corrected corrected;
  };

  void add_scale_up(const NetworkCalibration& calibration, const Cluster& cluster, LinkClass link_class);
  static std::size_t row(CollectiveKind kind, Means means, bool integer);

  std::array<std::vector<ByRanks>, 2> scale_up_;  // NVLink, PCIe: by row; empty when the cluster has no such level
  std::vector<Shape> across_nodes_;               // of this very cluster
};

}  // namespace ns_dist::network
