#include "calibration.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace ns_dist::network {
namespace {

// What a kind is measured as: by transport, and whether its elements are integers.
constexpr std::size_t kKinds = names_of<CollectiveKind>().size(), kRowsOfKind = 2 * kTransports.size();

// Of Calibration's tables for groups inside a node.
std::optional<std::size_t> index_of_table(LinkClass link_class) {
  if (link_class == LinkClass::kNvlink) return 0;
  return link_class == LinkClass::kPcie ? std::optional<std::size_t>(1) : std::nullopt;
}

std::size_t row_of(CollectiveKind kind, Transport transport, bool integer) {
  return static_cast<std::size_t>(kind) * kRowsOfKind + static_cast<std::size_t>(transport) * 2 + (integer ? 1 : 0);
}

Corrected corrected_of(const CalibrationCurve& curve, Corrected::Source source) {
  Correction::Knots knots{};
  std::copy_n(curve.log_ratio.begin(), std::min(curve.log_ratio.size(), knots.size()), knots.begin());
  Correction correction(knots);
  for (const CalibrationStep& step : curve.steps) {
    correction.add({knot_coordinate(step.modeled / units::s), step.height});
  }
  if (curve.blurred) correction = correction.blurred();
  Corrected corrected{correction, curve.deviation, curve.deviation_short, source, true};
  corrected.own = !curve.cluster.empty();
  corrected.users = !curve.compiled_in;
  corrected.least_bytes = curve.least / units::B, corrected.most_bytes = curve.most / units::B;
  corrected.link = curve.link / (units::B / units::s);
  return corrected;
}

// Doublings from the nearest end of a range; 0 in it, and where there is none (`most` of 0).
double doublings_beyond(double value, double least, double most) {
  if (most <= 0) return 0;
  return std::max({0.0, std::log2(value / most), std::log2(least / value)});
}

// Ranks of a call in its emptiest node.
std::int64_t per_node(const Call& call) {
  for (const Tier& tier : *call.placement) {
    if (call.link(tier).network()) return tier.members;
  }
  return call.placement->ranks;
}

// How far a collective lies from the measured ones, but for its size.
double doublings_of_machine(const Corrected& corrected, const Call& call) {
  double doublings = doublings_beyond(call.ranks(), static_cast<double>(corrected.least_ranks),
                                      static_cast<double>(corrected.most_ranks));
  if (corrected.ranks_per_node > 0) {
    doublings +=
        std::fabs(std::log2(static_cast<double>(per_node(call)) / static_cast<double>(corrected.ranks_per_node)));
  }
  const double peak = call.links[call.placement->outermost().level].peak;
  if (corrected.link > 0 && peak > 0) doublings += std::fabs(std::log2(peak / corrected.link));
  return doublings;
}

Corrected mixed(const Corrected& a, const Corrected& b, double weight) {
  Corrected both{a.correction.mixed(b.correction, weight), (1 - weight) * a.deviation + weight * b.deviation,
                 (1 - weight) * a.deviation_short + weight * b.deviation_short,
                 std::max({a.source, b.source, Corrected::Source::kOthers}), true};
  const bool differ = a.link > 0 && b.link > 0 && a.link != b.link;
  both.link = differ ? 0 : std::max(a.link, b.link);
  both.users = a.users || b.users;
  both.may_be_direct = a.may_be_direct || b.may_be_direct;
  return both;
}

// The correction of a family without measurements: the mean over the n measured families, with the weight n / (n + 1),
// and no correction with the rest. Leaving out one family at a time showed that families share about half of their
// differences to NCCL's constants.
Corrected mean_of(const std::vector<const CalibrationCurve*>& curves) {
  Corrected mean = corrected_of(*curves.front(), Corrected::Source::kOthers);
  for (std::size_t i = 1; i < curves.size(); ++i) {
    mean = mixed(mean, corrected_of(*curves[i], Corrected::Source::kOthers), 1 / static_cast<double>(i + 1));
  }
  const auto count = static_cast<double>(curves.size());
  mean = mixed(mean, {}, 1 / (count + 1));
  // Standard deviation of the logarithm of the ratio between families, from leaving out one family at a time.
  constexpr double kBetweenFamilies = 0.12;
  mean.deviation = std::hypot(mean.deviation, kBetweenFamilies);
  mean.deviation_short = std::hypot(mean.deviation_short, kBetweenFamilies);
  return mean;
}

// The route through the host's memory as physics has it: the host moves one message at a time, into its memory and out
// of it, so that the transfers of n ranks take 2n times as long. The measured L40S: 1.2, 5 and 17 times with 2, 4
// and 8.
Corrected through_host(std::size_t ranks) {
  constexpr double kLatency = 10e-6;  // s: what a collective takes without its transfers, on either route
  Correction::Knots knots{};
  for (std::size_t k = 0; k < knots.size(); ++k) {
    const double seconds = time_at(static_cast<double>(k));
    const double transfer = std::max(0.0, seconds - kLatency);
    knots[k] = std::log1p((2 * static_cast<double>(ranks) - 1) * transfer / seconds);
  }
  return {Correction(knots), 0, 0, Corrected::Source::kOthers, true};
}

// GPUs whose route over PCIe nobody measured: their transfers go directly, as NCCL's constants have it,
// or through the host's memory. The forecast lies between the two in logarithms, and the interval holds both.
Corrected of_unknown_route(const Corrected& host, std::size_t ranks) {
  Corrected between = mixed({}, host, 0.5);
  const double most = std::max(host.correction.knots().back(), std::log(2 * static_cast<double>(ranks)));
  const double route = (most / 2 + kDirectSpread) / kQuantile;
  between.deviation = std::hypot(between.deviation, route);
  between.deviation_short = std::hypot(between.deviation_short, route);
  between.source = Corrected::Source::kUnknownRoute;
  return between;
}

// GPUs of two dies, whose traffic crosses between the dies on its way: their small collectives are slower than those of
// one die with the same clock (B200, B300 and GB200 against H200, by 1.5).
bool has_two_dies(std::string_view family) { return family == "blackwell" || family == "cdna2"; }

// GPUs whose PCIe transfers may go through the host's memory, as those of the measured L40S: cards with GDDR, of which
// NVIDIA's driver has no peer-to-peer transfers (GeForce) or servers often turn them off. Boards with HBM reach each
// other over PCIe switches; the measurements do not apply to them.
bool may_go_through_host(const Gpu& gpu) { return gpu.has_gddr(); }

// The curves of one link class inside a node, as one cluster looks them up.
class MeasuredCurves {
 public:
  MeasuredCurves(const NetworkCalibration& calibration, const Cluster& cluster, LinkClass link_class)
      : cluster_(cluster), link_class_(link_class), family_(generation_of(cluster.gpu.architecture)) {
    const bool knows_route = std::any_of(cluster.levels.begin(), cluster.levels.end(), [&](const FabricLevel& level) {
      return link_class_of(level.fabric.kind) == link_class && level.fabric.peer_to_peer;
    });
    bool any_measured = false;
    for (const CalibrationCurve& curve : calibration.curves) {
      if (curve.ranks < 2 || curve.ranks > static_cast<std::int64_t>(kMostMeasuredRanks)) continue;
      if (curve.fabric != name_of(link_class)) continue;
      // Other servers may have another route.
      if (knows_route && (curve.cluster.empty() || curve.cluster != cluster.id)) continue;
      const Transport transport = curve.in_switch ? Transport::kSwitch : Transport::kMessages;
      measured_[row_of(curve.kind, transport, curve.integer)][static_cast<std::size_t>(curve.ranks)].push_back(&curve);
      any_measured = true;
    }
    unmeasured_route_ =
        link_class == LinkClass::kPcie && may_go_through_host(cluster.gpu) && !any_measured && !knows_route;
  }

  // The correction of groups of exactly so many ranks: of this collective, or of the one that it takes after.
  Corrected find(CollectiveKind kind, Transport transport, bool integer, std::size_t ranks) const {
    Corrected found = look_up(kind, transport, integer, ranks);
    if (!found.found && integer) found = look_up(kind, transport, false, ranks);
    // Of what a switch does, all-reduces alone were measured.
    const CollectiveKind like = transport == Transport::kSwitch ? CollectiveKind::kAllReduce : measured_like(kind);
    if (!found.found && like != kind) {
      found = look_up(like, transport, false, ranks);
      found.source = std::max(found.source, Corrected::Source::kOthers);
      found.correction = found.correction.blurred();
    }
    if (!found.found && unmeasured_route_ && transport == Transport::kMessages) {
      found = of_unknown_route(through_host(ranks), ranks);
    }
    return found;
  }

 private:
  static bool is_general(const CalibrationCurve& curve) { return curve.cluster.empty() && curve.gpu.empty(); }

  // The first of these that there are: curves of this cluster, of its GPU, of the GPU whose file its own file changes,
  // of its family; the mean over families.
  Corrected look_up(CollectiveKind kind, Transport transport, bool integer, std::size_t ranks) const {
    const std::vector<const CalibrationCurve*>& curves = measured_[row_of(kind, transport, integer)][ranks];
    if (curves.empty()) return {};
    const auto first = [&](auto&& wanted) -> const CalibrationCurve* {
      const auto at = std::find_if(curves.begin(), curves.end(), [&](const auto* curve) { return wanted(*curve); });
      return at == curves.end() ? nullptr : *at;
    };
    const CalibrationCurve* own =
        first([&](const auto& curve) { return !curve.cluster.empty() && curve.cluster == cluster_.id; });
    if (!own) own = first([&](const auto& curve) { return curve.cluster.empty() && curve.gpu == cluster_.gpu.id; });
    const CalibrationCurve* like = own || cluster_.gpu.like.empty() ? nullptr : first([&](const auto& curve) {
      return curve.cluster.empty() && curve.gpu == cluster_.gpu.like;
    });
    if (!own && !like) {
      own = first([&](const auto& curve) { return is_general(curve) && curve.architecture == family_; });
    }
    if (own || like) {
      Corrected found =
          like ? corrected_of(*like, Corrected::Source::kOthers) : corrected_of(*own, Corrected::Source::kMeasured);
      found.may_be_direct = link_class_ == LinkClass::kPcie && may_go_through_host(cluster_.gpu) && !found.users;
      return found;
    }
    if (link_class_ == LinkClass::kPcie) {
      if (!may_go_through_host(cluster_.gpu)) return {};
      return of_unknown_route(corrected_of(*curves.front(), Corrected::Source::kOthers), ranks);
    }
    std::vector<const CalibrationCurve*> others, alike;
    for (const CalibrationCurve* curve : curves) {
      if (!is_general(*curve)) continue;
      others.push_back(curve);
      if (has_two_dies(curve->architecture) == has_two_dies(family_)) alike.push_back(curve);
    }
    if (!alike.empty()) return mean_of(alike);
    return others.empty() ? Corrected{} : mean_of(others);
  }

  const Cluster& cluster_;
  LinkClass link_class_;
  std::string_view family_;
  bool unmeasured_route_ = false;  // nobody knows whether transfers go through the host's memory
  using CurvesByRanks = std::array<std::vector<const CalibrationCurve*>, kMostMeasuredRanks + 1>;
  std::vector<CurvesByRanks> measured_ = std::vector<CurvesByRanks>(kKinds * kRowsOfKind);
};

// Of a row of the table: what was measured, and between and beyond it what follows from the nearest numbers of ranks.
CorrectedByRanks by_ranks(const MeasuredCurves& curves, CollectiveKind kind, Transport transport, bool integer) {
  CorrectedByRanks row;
  std::size_t last = 0;
  const auto blur = [&](std::size_t ranks, Corrected corrected) {
    row[ranks] = std::move(corrected);
    row[ranks].correction = row[ranks].correction.blurred();
  };
  for (std::size_t ranks = 2; ranks <= kMostMeasuredRanks; ++ranks) {
    const Corrected found = curves.find(kind, transport, integer, ranks);
    if (!found.found) continue;
    row[ranks] = found;
    for (std::size_t between = last == 0 ? 2 : last + 1; between < ranks; ++between) {
      const double low = std::log2(static_cast<double>(last == 0 ? 1 : last));
      const double share =
          (std::log2(static_cast<double>(between)) - low) / (std::log2(static_cast<double>(ranks)) - low);
      blur(between, last == 0 ? mixed(found, found, 0) : mixed(row[last], found, share));
    }
    last = ranks;
  }
  for (std::size_t beyond = last + 1; last > 0 && beyond <= kMostMeasuredRanks + 1; ++beyond) {
    blur(beyond, mixed(row[last], row[last], 0));
    row[beyond].most_ranks = static_cast<std::int64_t>(last);
  }
  return row;
}

// Of all kinds, transports and elements.
std::vector<CorrectedByRanks> table_of(const MeasuredCurves& curves) {
  std::vector<CorrectedByRanks> table(kKinds * kRowsOfKind);
  for (std::size_t k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    for (const Transport transport : kTransports) {
      for (const bool integer : {false, true}) {
        table[row_of(kind, transport, integer)] = by_ranks(curves, kind, transport, integer);
      }
    }
  }
  return table;
}

}  // namespace

double Corrected::unmeasured(const Call& call) const {
  const double machine = doublings_of_machine(*this, call);
  const double measured = std::log2(static_cast<double>(std::max<std::int64_t>(most_ranks, 2)));
  const double sizes = std::min(1.0, doublings_beyond(call.bytes, least_bytes, most_bytes) / kNarrowingOctaves);
  return 1 - measured / (measured + machine) * (1 - sizes);
}

bool Corrected::is_far(const Call& call) const {
  return doublings_of_machine(*this, call) > 1 || doublings_beyond(call.bytes, least_bytes, most_bytes) > 1;
}

double Corrected::deviation_of(double bytes) const {
  constexpr double kBetweenMachines = 0.03;                   // one machine differs from the next by about 3 %
  const double narrow = deviation < deviation_short ? 0 : 1;  // where the narrowing begins, or ends
  const double share = std::clamp(narrow + std::log2(bytes / kLongMessage) / kNarrowingOctaves, 0.0, 1.0);
  return std::pow(std::hypot(deviation_short, kBetweenMachines), 1 - share) *
         std::pow(std::hypot(deviation, kBetweenMachines), share);
}

CollectiveKind measured_like(CollectiveKind kind) {
  switch (pattern_of(kind)) {
    case Pattern::kWholeBuffer:
      if (kind == CollectiveKind::kBroadcast) return CollectiveKind::kAllGather;
      return kind == CollectiveKind::kReduce ? CollectiveKind::kReduceScatter : kind;
    case Pattern::kPartEach:
    case Pattern::kPair:
      return CollectiveKind::kAllToAll;
    case Pattern::kNothing:
      return CollectiveKind::kAllReduce;
  }
  return kind;
}

Calibration::Calibration(const NetworkCalibration& calibration, const Cluster& cluster) {
  for (const LinkClass link_class : {LinkClass::kNvlink, LinkClass::kPcie}) {
    const bool present = std::any_of(cluster.levels.begin(), cluster.levels.end(), [&](const FabricLevel& level) {
      return link_class_of(level.fabric.kind) == link_class;
    });
    if (present) scale_up_[*index_of_table(link_class)] = table_of(MeasuredCurves(calibration, cluster, link_class));
  }
  for (const CalibrationCurve& curve : calibration.curves) {
    const auto link_class = enumerator_from_name<LinkClass>(curve.fabric);
    if (!link_class || curve.cluster.empty() || curve.cluster != cluster.id) continue;
    if (in_table(*link_class, curve.ranks)) continue;
    Shape& shape =
        own_.emplace_back(Shape{curve.kind, *link_class, curve.in_switch ? Transport::kSwitch : Transport::kMessages,
                                curve.integer, curve.ranks, corrected_of(curve, Corrected::Source::kMeasured)});
    if (*link_class == LinkClass::kNetwork) shape.corrected.ranks_per_node = curve.ranks_per_node;
  }
  for (Shape& shape : own_) {
    shape.corrected.least_ranks = shape.corrected.most_ranks = shape.ranks;
    for (const Shape& other : own_) {
      if (other.kind != shape.kind || other.link_class != shape.link_class ||
          other.corrected.ranks_per_node != shape.corrected.ranks_per_node) {
        continue;
      }
      shape.corrected.least_ranks = std::min(shape.corrected.least_ranks, other.ranks);
      shape.corrected.most_ranks = std::max(shape.corrected.most_ranks, other.ranks);
    }
  }
}

bool Calibration::in_table(LinkClass link_class, std::int64_t ranks) {
  return index_of_table(link_class) && ranks <= static_cast<std::int64_t>(kMostMeasuredRanks);
}

const Corrected* Calibration::find(const Call& call, Transport transport) const {
  if (call.torus()) return nullptr;  // all that was measured goes through switches, or between all pairs
  const LinkClass link_class = call.link(call.placement->outermost()).link_class;
  if (!in_table(link_class, call.placement->ranks)) {
    if (const Corrected* own = nearest_own(call, transport)) return own;
  }
  const std::optional<std::size_t> index = index_of_table(link_class);
  if (!index) return nullptr;
  const auto& table = scale_up_[*index];
  if (table.empty()) return nullptr;
  const auto ranks = std::min(static_cast<std::size_t>(call.placement->ranks), kMostMeasuredRanks + 1);
  const Corrected& found = table[row_of(call.kind, transport, call.integer)][ranks];
  return found.found ? &found : nullptr;
}

const Corrected* Calibration::nearest_own(const Call& call, Transport transport) const {
  const LinkClass link_class = call.link(call.placement->outermost()).link_class;
  const bool network = link_class == LinkClass::kNetwork;  // one curve there holds for both transports
  const Corrected* nearest = nullptr;
  double least = 0;
  for (const Shape& shape : own_) {
    if (shape.kind != call.kind || shape.link_class != link_class || (!network && shape.transport != transport)) {
      continue;
    }
    // The ranks of a node matter more than the number of ranks, and this more than the elements.
    constexpr double kOfNode = 100, kOfElements = 1e-3;  // derived: there are at most 63 doublings of ranks
    double distance = std::fabs(std::log2(static_cast<double>(shape.ranks) / call.ranks()));
    if (network) {
      distance += kOfNode * std::fabs(std::log2(static_cast<double>(shape.corrected.ranks_per_node) /
                                                static_cast<double>(per_node(call))));
    }
    if (shape.integer != call.integer) distance += kOfElements;
    if (!nearest || distance < least) {
      nearest = &shape.corrected;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace ns_dist::network
