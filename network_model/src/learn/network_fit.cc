#include "ns_dist/network_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <map>
#include <optional>

#include "calibration.h"
#include "correction.h"
#include "estimate.h"
#include "ns_dist/error_figures.h"
#include "timing.h"
#include "topology.h"
#include "wording.h"

namespace ns_dist {
namespace {

using network::kKnots;

// Modeled time and measured over modeled, one row.
struct Point {
  double bytes, modeled, log_ratio;
  std::size_t cluster;
};

// Solves the symmetric positive system in place by Cholesky's method; `matrix` holds the lower triangle.
std::vector<double> solve(std::vector<std::vector<double>> matrix, std::vector<double> right) {
  const std::size_t n = right.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = matrix[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= matrix[i][k] * matrix[j][k];
      matrix[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / matrix[j][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) right[i] -= matrix[i][k] * right[k];
    right[i] /= matrix[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) right[i] -= matrix[k][i] * right[k];
    right[i] /= matrix[i][i];
  }
  return right;
}

using Basis = std::vector<std::pair<std::size_t, double>>;  // unknowns that a point sees, and how much of each

struct Curve {
  network::Correction correction;
  network::Correction::Knots knots{};
  std::vector<network::Step> steps;
  // Leverage of the measurements of one size on one machine, 0 to 1 (the diagonal of the hat matrix). If they were
  // held out, the error there would be 1 / (1 - leverage) times as large.
  std::map<std::pair<std::size_t, double>, double> leverage;  // by cluster and bytes

  double exaggeration(const Point& point) const {
    constexpr double kMost = 10;  // limit: a curve that interpolates its points has no finite value
    const auto found = leverage.find({point.cluster, point.bytes});
    return found == leverage.end() ? 1 : 1 / std::max(1 - found->second, 1 / kMost);
  }
};

// Normal equations of a curve: the values at its knots, then the heights of its steps.
struct Equations {
  std::vector<std::vector<double>> matrix;  // lower triangle
  std::vector<double> right;
  struct Place {
    Basis basis;
    double weight = 0;
  };
  std::map<std::pair<std::size_t, double>, Place> places;  // that were measured: cluster and bytes
};

Equations equations_of(const std::vector<Point>& points, const std::vector<double>& switches, double smoothness) {
  std::map<double, double> rows_of_size;  // every size counts once, however often it was measured
  for (const Point& point : points) rows_of_size[point.bytes] += 1;
  const std::size_t n = kKnots + switches.size();
  Equations out{std::vector<std::vector<double>>(n, std::vector<double>(n, 0)), std::vector<double>(n, 0), {}};
  auto& [matrix, right, places] = out;
  for (const Point& point : points) {
    const double x = network::knot_coordinate(point.modeled);
    const auto k = std::min(static_cast<std::size_t>(x), kKnots - 2);
    Basis basis = {{k, 1 - (x - static_cast<double>(k))}, {k + 1, x - static_cast<double>(k)}};
    for (std::size_t i = 0; i < switches.size(); ++i) {
      basis.emplace_back(kKnots + i, network::step_share(x, switches[i]));
    }
    const double weight = 1 / rows_of_size[point.bytes];
    for (const auto& [i, a] : basis) {
      right[i] += weight * a * point.log_ratio;
      for (const auto& [j, b] : basis) {
        if (j <= i) matrix[i][j] += weight * a * b;
      }
    }
    Equations::Place& place = places[{point.cluster, point.bytes}];
    place.basis = std::move(basis);
    place.weight += weight;
  }
  for (std::size_t k = 1; k + 1 < kKnots; ++k) {
    constexpr std::array<double, 3> kSecond = {1, -2, 1};
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j <= i; ++j) matrix[k - 1 + i][k - 1 + j] += smoothness * kSecond[i] * kSecond[j];
    }
  }
  constexpr double kFlatness = 1e-6;  // ties knots without data to their neighbors
  for (std::size_t k = 0; k + 1 < kKnots; ++k) {
    matrix[k][k] += kFlatness;
    matrix[k + 1][k + 1] += kFlatness;
    matrix[k + 1][k] -= kFlatness;
  }
  constexpr double kHeightPenalty = 0.02;  // on squared heights: a step without data stays low
  for (std::size_t i = kKnots; i < n; ++i) matrix[i][i] += kHeightPenalty;
  return out;
}

// How much of a place's own residual the curve takes up.
std::map<std::pair<std::size_t, double>, double> leverage_of(const Equations& equations) {
  std::map<std::pair<std::size_t, double>, double> out;
  for (const auto& [place, found] : equations.places) {
    std::vector<double> unit(equations.right.size(), 0);
    for (const auto& [i, a] : found.basis) unit[i] = a;
    const std::vector<double> pulled = solve(equations.matrix, unit);
    for (const auto& [i, a] : found.basis) out[place] += found.weight * a * pulled[i];
  }
  return out;
}

// Least squares for a piecewise linear function with penalized second differences, and steps at `switches` with
// penalized heights. A step that would go down is dropped: the function has to grow.
Curve fit_curve(const std::vector<Point>& points, std::vector<double> switches, double smoothness) {
  double first = static_cast<double>(kKnots), last = 0;
  for (const Point& point : points) {
    first = std::min(first, network::knot_coordinate(point.modeled));
    last = std::max(last, network::knot_coordinate(point.modeled));
  }
  std::erase_if(switches, [&](double position) { return position <= first || position >= last; });

  Curve curve;
  std::vector<double> solution;
  for (;;) {
    const Equations equations = equations_of(points, switches, smoothness);
    solution = solve(equations.matrix, equations.right);
    constexpr double kLeastHeight = 0.02;  // lower steps (2 % of the time) are left out, the lowest first
    const auto heights = solution.begin() + static_cast<std::ptrdiff_t>(kKnots);
    const auto lowest = std::min_element(heights, solution.end());
    if (lowest == solution.end() || *lowest > kLeastHeight) {
      curve.leverage = leverage_of(equations);
      break;
    }
    switches.erase(switches.begin() + (lowest - heights));
  }

  std::copy_n(solution.begin(), kKnots, curve.knots.begin());
  // Beyond the measured range the curve keeps the value at its end.
  const auto lowest = static_cast<std::size_t>(first);
  const auto highest = std::min(static_cast<std::size_t>(std::ceil(last)), kKnots - 1);
  for (std::size_t k = 0; k < lowest; ++k) curve.knots[k] = curve.knots[lowest];
  for (std::size_t k = highest + 1; k < kKnots; ++k) curve.knots[k] = curve.knots[highest];
  curve.correction = network::Correction(curve.knots);
  curve.knots = curve.correction.knots();
  for (std::size_t i = 0; i < switches.size(); ++i) {
    curve.steps.push_back({switches[i], solution[kKnots + i]});
    curve.correction.add(curve.steps.back());
  }
  return curve;
}

// `shared` plus a smooth curve through the residuals of the points.
Curve on_top_of(const Curve& shared, std::vector<Point> points, double smoothness) {
  for (Point& point : points) point.log_ratio -= shared.correction.log_ratio(point.modeled);
  Curve curve = fit_curve(points, {}, smoothness);
  for (std::size_t k = 0; k < kKnots; ++k) curve.knots[k] += shared.knots[k];
  curve.steps = shared.steps;
  curve.correction = network::Correction(curve.knots);
  curve.knots = curve.correction.knots();
  for (const network::Step& step : curve.steps) curve.correction.add(step);
  // One smoother after the other.
  for (auto& [place, leverage] : curve.leverage) {
    const auto below = shared.leverage.find(place);
    if (below != shared.leverage.end()) leverage = 1 - (1 - leverage) * (1 - below->second);
  }
  return curve;
}

// Standard deviations of held-out errors (each size of each machine held out in turn), and their counts, of long and of
// short messages. Where there are none of one kind, the deviation of the other.
struct Spread {
  std::array<double, 2> deviation{};  // [0]: from kLongMessage
  std::array<std::size_t, 2> count{};
};
Spread spread_of(const Curve& fitted, const std::vector<Point>& points) {
  const auto residual = [&](const Point& point) {
    return point.log_ratio - fitted.correction.log_ratio(point.modeled);
  };
  std::map<std::pair<std::size_t, double>, std::pair<double, double>> sums;  // of residuals, and how many
  for (const Point& point : points) {
    auto& [sum, count] = sums[{point.cluster, point.bytes}];
    sum += residual(point);
    count += 1;
  }
  std::array<std::vector<double>, 2> errors;
  for (const Point& point : points) {
    const auto& [sum, count] = sums[{point.cluster, point.bytes}];
    const double left_out = residual(point) + (fitted.exaggeration(point) - 1) * sum / count;
    errors[point.bytes < network::kLongMessage ? 1 : 0].push_back(std::fabs(left_out));
  }
  Spread spread;
  for (std::size_t i = 0; i < 2; ++i) {
    spread.count[i] = errors[i].size();
    if (errors[i].empty()) continue;
    // The error that nine in ten stay below, as the deviation of a normal distribution that has it.
    constexpr double kShare = 0.9;
    const auto place = static_cast<std::size_t>(std::ceil(kShare * static_cast<double>(errors[i].size()))) - 1;
    const auto nth = errors[i].begin() + static_cast<std::ptrdiff_t>(place);
    std::nth_element(errors[i].begin(), nth, errors[i].end());
    spread.deviation[i] = *nth / network::kQuantile;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    if (spread.count[i] == 0) spread.deviation[i] = spread.deviation[1 - i];
  }
  return spread;
}

void describe(CalibrationCurve& curve, const Curve& fitted, const std::vector<Point>& points) {
  const Spread spread = spread_of(fitted, points);
  curve.deviation = spread.deviation[0];
  curve.deviation_short = spread.deviation[1];
  curve.log_ratio.assign(fitted.knots.begin(), fitted.knots.end());
  curve.steps.clear();
  for (const network::Step& step : fitted.steps) {
    curve.steps.push_back({network::time_at(step.position) * units::s, step.height});
  }
}

// The deviation of a few measurements is uncertain: the deviation of the base counts as four of them, or
// kUnknownDeviation without a base, or where the base's is a doubt about the route, which a measurement ends.
constexpr double kUnknownDeviation = 0.15;
double deviation_of_few(double measured, std::size_t count, double prior) {
  constexpr double kPrior = 4;
  const auto n = static_cast<double>(count);
  return std::sqrt((n * measured * measured + kPrior * prior * prior) / (n + kPrior));
}

// A cluster that was measured, prepared for forecasts.
struct Machine {
  const Cluster* cluster = nullptr;
  network::Topology topology;
  std::vector<network::Link> links;
  std::optional<network::Calibration> base;  // NetworkFitOptions::base on this cluster
  network::Calibration inside;               // the same with what was fitted inside its nodes
};

// Measurements with equal keys share one curve. The order decides the order of the curves in the file.
struct GroupKey {
  std::string cluster, fabric, architecture;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2, ranks_per_node = 2;
  bool in_switch = false, integer = false;
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

struct Group {
  std::vector<Point> points;
  std::vector<double> switches;                     // see switches_of
  std::array<const network::Corrected*, 2> base{};  // by Transport; null: no correction
  bool has_switch = false;                          // the switch could reduce
  std::map<std::size_t, double> links;              // CalibrationCurve::link, bytes per second, by cluster
};

using Groups = std::map<GroupKey, Group>;

CalibrationCurve curve_of(const GroupKey& key) {
  CalibrationCurve curve;
  curve.cluster = key.cluster;
  curve.fabric = key.fabric;
  curve.architecture = key.architecture;
  curve.kind = key.kind;
  curve.ranks = key.ranks;
  curve.ranks_per_node = key.ranks_per_node;
  curve.in_switch = key.in_switch;
  curve.integer = key.integer;
  return curve;
}

// The link of all machines that were measured, or of none.
BytesPerSecond link_of(const std::map<std::size_t, double>& links, const std::vector<Point>& points) {
  double common = links.at(points.front().cluster);
  for (const Point& point : points) {
    if (links.at(point.cluster) != common) common = 0;
  }
  return common * (units::B / units::s);
}

// Knot coordinates of the modeled times at which the modeled choice changes, 512 B to 1 GiB.
std::vector<double> switches_of(network::Call call, network::Transport transport) {
  std::vector<double> switches;
  std::string_view method;
  constexpr double kFinest = 1.0 / 32;  // octaves
  for (double octave = 9; octave <= 30; octave += kFinest) {
    call.bytes = std::exp2(octave);
    const network::Choice choice = network::choose(call, {}, transport);
    const std::string_view next = network::method_of(*choice.algorithm, choice.protocol);
    if (!method.empty() && next != method) switches.push_back(network::knot_coordinate(choice.cost.time()));
    method = next;
  }
  return switches;
}

Result<std::vector<Machine>> machines_of(std::span<const Cluster> clusters, const NetworkCalibration* base) {
  std::vector<Machine> machines;
  for (const Cluster& cluster : clusters) {
    Machine machine;
    machine.cluster = &cluster;
    NS_TRY(machine.topology, network::Topology::of(cluster));
    machine.links = network::links_of(cluster);
    if (base) machine.base.emplace(*base, cluster);
    machines.push_back(std::move(machine));
  }
  return machines;
}

// What of the model a measurement is compared with.
struct Reference {
  network::Choice choice;
  network::Transport transport = network::Transport::kMessages;
  double expected = 0;                              // seconds, corrected by the base where there is one
  std::array<const network::Corrected*, 2> base{};  // by Transport
  bool has_switch = false;
};

// Without a base, measurements of at least 1 MiB are compared with reduction in the switch where the switch can reduce.
// Messages between ranks are then fitted on integers, which the switch does not reduce, and on short messages. With a
// base, a measurement is compared with what the corrected model would choose. No algorithm in `choice`: none applies.
Reference reference_of(const network::Call& call, const Machine& machine) {
  Reference reference;
  if (call.placement->tier_count == 0) return reference;
  reference.choice = network::choose(call, {}, network::Transport::kMessages);
  const network::Choice in_switch = network::choose(call, {}, network::Transport::kSwitch);
  reference.has_switch = in_switch.algorithm != nullptr;
  if (!reference.choice.algorithm) return reference;
  const auto expected = [&](network::Transport transport, const network::Choice& choice) {
    return network::corrected_time(call, {}, transport, choice, reference.base[static_cast<std::size_t>(transport)]);
  };
  bool by_switch = reference.has_switch && call.bytes >= network::kLongMessage;
  if (machine.base) {
    for (const network::Transport transport : network::kTransports) {
      reference.base[static_cast<std::size_t>(transport)] = machine.base->find(call, transport);
    }
    by_switch = reference.has_switch && expected(network::Transport::kSwitch, in_switch) <
                                            expected(network::Transport::kMessages, reference.choice);
  }
  if (by_switch) {
    reference.choice = in_switch;
    reference.transport = network::Transport::kSwitch;
  }
  reference.expected = expected(reference.transport, reference.choice);
  return reference;
}

// Measurements whose median is so much longer than what stays in a node were not decided there: more than a
// collective usually deviates from its forecast.
constexpr double kClearlyLonger = 1.3;

// Of each group whose nodes take longer than the network by the forecast, measurements over what stays in a node.
using OverNodes = std::map<GroupKey, std::vector<double>>;

// What the network joins, all levels below the first network level; 0: it is open, and holds all GPUs.
std::int64_t node_size(const Cluster& cluster) {
  std::int64_t node = 1;
  for (const FabricLevel& level : cluster.levels) {
    if (network::link_class_of(level.fabric.kind) == network::LinkClass::kNetwork) break;
    node *= level.size;
  }
  return node;
}

}  // namespace

std::int64_t ranks_of_full_nodes(const Cluster& cluster, std::int64_t ranks) {
  const std::int64_t node = node_size(cluster);
  return node == 0 ? ranks : std::min(ranks, node);
}

namespace {

// Adds a measurement inside a node, or `across` nodes, to its group. False: it tells nothing of the network, because
// what stays in a node takes longer there. Without `groups`, only fills `over_nodes`, which decides it for a group.
Result<bool> add_measurement(const CollectiveMeasurement& m, const std::string& where,
                             std::span<const Machine> machines, const NetworkFitOptions& options, bool across,
                             OverNodes& over_nodes, Groups* groups) {
  const double bytes = std::max(m.size / units::B, m.kind == CollectiveKind::kBarrier ? 1.0 : 0.0);
  const double seconds = m.latency / units::s;
  if (m.cluster >= machines.size()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("cluster {} is not there", m.cluster), where});
  }
  if (!std::isfinite(bytes) || bytes <= 0 || !std::isfinite(seconds) || seconds <= 0) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} bytes in {} s", bytes, seconds), where,
                 "a positive size and a positive latency"});
  }
  const Machine& machine = machines[m.cluster];
  const Cluster& cluster = *machine.cluster;
  auto ranks = measured_group(cluster, m.ranks, m.ranks_per_node);
  if (!ranks) {
    ranks.error().where = where;
    return fail(ranks.error());
  }
  NS_TRY(const network::Placement placement, machine.topology.place(*ranks));
  const network::Call call{m.kind, bytes, m.integer, m.imbalance, &placement, machine.links.data()};
  Reference reference = reference_of(call, machine);
  if (!reference.choice.algorithm) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} between {} ranks", network::with_article(m.kind), m.ranks),
                 where, "a collective of at least two ranks"});
  }
  const network::Link& outermost = call.link(placement.outermost());
  if (outermost.network() != across) return true;
  GroupKey key;
  if (options.for_one_cluster) key.cluster = cluster.id;
  key.fabric = name_of(outermost.link_class);
  key.architecture = generation_of(cluster.gpu.architecture);
  key.kind = m.kind;
  key.ranks = m.ranks;
  key.ranks_per_node = m.ranks_per_node > 0 ? m.ranks_per_node : ranks_of_full_nodes(cluster, m.ranks);
  key.in_switch = reference.transport == network::Transport::kSwitch && !machine.base;
  key.integer = m.integer && (m.kind == CollectiveKind::kReduceScatter || m.kind == CollectiveKind::kReduce);
  if (machine.base) {
    // A forecast is the longest of these three. Only where it is that of the network does a measurement tell of it, or
    // where the measurement itself says that the network takes longer.
    const double inside = across ? network::inside_nodes(call, false, machine.inside).time : 0;
    if (inside > reference.expected) {
      if (groups == nullptr) over_nodes[key].push_back(seconds / inside);
      if (groups != nullptr && median_of(over_nodes[key]) < kClearlyLonger) return false;
    }
    reference.expected = std::max(reference.expected, network::bandwidth_bound(call));
  }
  if (groups == nullptr) return true;
  Group& group = (*groups)[key];
  if (group.points.empty()) group.switches = switches_of(call, reference.transport);
  group.base = reference.base;
  group.has_switch = reference.has_switch;
  group.links[m.cluster] = outermost.peak;
  group.points.push_back({bytes, reference.choice.cost.time(), std::log(seconds / reference.expected), m.cluster});
  return true;
}

// One smooth difference to the base for each group, whether the switch reduces or not: a difference for one transport
// alone would move the choice to the other, which was not measured.
std::vector<CalibrationCurve> curves_over_base(const Groups& groups, double group_penalty) {
  std::vector<CalibrationCurve> curves;
  for (const auto& [key, group] : groups) {
    CalibrationCurve curve = curve_of(key);
    const auto [least, most] = std::minmax_element(group.points.begin(), group.points.end(),
                                                   [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
    curve.least = least->bytes * units::B, curve.most = most->bytes * units::B;
    curve.link = link_of(group.links, group.points);
    const Curve difference = fit_curve(group.points, {}, group_penalty);
    const Spread spread = spread_of(difference, group.points);
    const bool both = group.has_switch && key.fabric != name_of(network::LinkClass::kNetwork);
    for (const bool in_switch : {false, true}) {
      if (in_switch && !both) continue;
      curve.in_switch = in_switch;
      const network::Corrected* base = group.base[in_switch ? 1 : 0];
      curve.log_ratio.assign(difference.knots.begin(), difference.knots.end());
      curve.steps.clear();
      curve.blurred = base && base->correction.is_blurred();
      if (base) {
        for (std::size_t k = 0; k < kKnots; ++k) curve.log_ratio[k] += base->correction.knots()[k];
        for (const network::Step& step : base->correction.steps()) {
          curve.steps.push_back({network::time_at(step.position) * units::s, step.height});
        }
      }
      const bool known = base && base->source != network::Corrected::Source::kUnknownRoute;
      curve.deviation =
          deviation_of_few(spread.deviation[0], spread.count[0], known ? base->deviation : kUnknownDeviation);
      curve.deviation_short =
          deviation_of_few(spread.deviation[1], spread.count[1], known ? base->deviation_short : kUnknownDeviation);
      curves.push_back(curve);
    }
  }
  return curves;
}

// All-gathers and reduce-scatters of a group move the same bytes over the same links and change protocols together.
// They share one curve, on which each adds a smooth difference.
GroupKey pool_of(GroupKey key) {
  if (key.kind == CollectiveKind::kReduceScatter) key.kind = CollectiveKind::kAllGather;
  key.integer = false;
  return key;
}

std::map<GroupKey, Curve> pooled_curves(const Groups& groups, double smoothness) {
  Groups pools;
  for (const auto& [key, group] : groups) {
    Group& pool = pools[pool_of(key)];
    pool.points.insert(pool.points.end(), group.points.begin(), group.points.end());
    if (pool.switches.empty()) pool.switches = group.switches;
  }
  std::map<GroupKey, Curve> pooled;
  for (const auto& [key, pool] : pools) pooled[key] = fit_curve(pool.points, pool.switches, smoothness);
  return pooled;
}

// The curve of each group, and one for each GPU of a group that was measured on several.
std::vector<CalibrationCurve> curves_of_groups(const Groups& groups, std::span<const Machine> machines,
                                               const NetworkFitOptions& options) {
  const std::map<GroupKey, Curve> pooled = pooled_curves(groups, options.smoothness);
  std::vector<CalibrationCurve> curves;
  for (const auto& [key, group] : groups) {
    CalibrationCurve curve = curve_of(key);
    // Whether PCIe transfers go through the host is a server's own: such a curve holds for no other GPU.
    if (key.fabric == name_of(network::LinkClass::kPcie) && key.cluster.empty() && !group.points.empty()) {
      curve.gpu = machines[group.points.front().cluster].cluster->gpu.id;
    }
    const Curve fitted = on_top_of(pooled.at(pool_of(key)), group.points, options.group_penalty);
    describe(curve, fitted, group.points);
    curve.link = link_of(group.links, group.points);
    curves.push_back(curve);
    std::map<std::string, std::vector<Point>> by_gpu;
    for (const Point& point : group.points) by_gpu[machines[point.cluster].cluster->gpu.id].push_back(point);
    if (by_gpu.size() == 1) continue;
    for (const auto& [gpu, points] : by_gpu) {
      curve.gpu = gpu;
      describe(curve, on_top_of(fitted, points, options.group_penalty), points);
      curve.link = link_of(group.links, points);
      curves.push_back(curve);
    }
  }
  return curves;
}

}  // namespace

Result<RankGroup> measured_group(const Cluster& cluster, std::int64_t ranks, std::int64_t ranks_per_node) {
  if (ranks > 0 && ranks_per_node == 0) return RankGroup{0, {{ranks, 1}}};
  if (ranks < 1 || ranks_per_node < 1 || ranks % ranks_per_node != 0) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} ranks, {} in each node", ranks, ranks_per_node), "",
                 "positive numbers, the second a divisor of the first"});
  }
  const std::int64_t node = node_size(cluster);
  if (node == 0) return RankGroup{0, {{ranks, 1}}};
  if (ranks_per_node > node) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} ranks in a node of \"{}\", which has {} GPUs", ranks_per_node, cluster.id, node), "",
                 fmt::format("at most {}", node), "write fewer ranks of a node"});
  }
  if (ranks == ranks_per_node) return RankGroup{0, {{ranks, 1}}};
  return RankGroup{0, {{ranks_per_node, 1}, {ranks / ranks_per_node, node}}};
}

Result<NetworkCalibration> fit_network(std::span<const Cluster> clusters,
                                       std::span<const CollectiveMeasurement> measurements,
                                       const NetworkFitOptions& options) {
  if (measurements.empty()) {
    return fail({ErrorCode::kInvalidInput, "no measurements", "", "at least one collective"});
  }
  NS_TRY(std::vector<Machine> machines, machines_of(clusters, options.base));
  Groups groups;
  NetworkCalibration result;
  OverNodes over_nodes;
  for (const bool across : {false, true}) {
    const auto add = [&](std::size_t i, Groups* to) {
      const std::string where = i < options.places.size() ? options.places[i] : fmt::format("measurement {}", i + 1);
      return add_measurement(measurements[i], where, machines, options, across, over_nodes, to);
    };
    for (std::size_t i = 0; across && options.base && i < measurements.size(); ++i) NS_TRY_VOID(add(i, nullptr));
    for (std::size_t i = 0; i < measurements.size(); ++i) {
      NS_TRY(const bool tells, add(i, &groups));
      if (!tells) result.left_out.push_back(i);
    }
    if (across || !options.base) continue;
    NetworkCalibration inside{"", curves_over_base(groups, options.group_penalty)};
    inside.curves.insert(inside.curves.end(), options.base->curves.begin(), options.base->curves.end());
    for (Machine& machine : machines) machine.inside = network::Calibration(inside, *machine.cluster);
  }
  if (groups.empty()) {
    return fail({ErrorCode::kInvalidInput,
                 "no measurement tells of the network: what stays in a node takes longer there than all of it across "
                 "nodes",
                 "", "collectives inside one node, or larger ones across nodes",
                 "measure the same collective on the ranks of one node"});
  }
  result.source = options.source;
  result.curves =
      options.base ? curves_over_base(groups, options.group_penalty) : curves_of_groups(groups, machines, options);
  return result;
}

}  // namespace ns_dist
