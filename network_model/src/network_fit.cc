#include "ns_dist/network_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "calibration.h"
#include "correction.h"
#include "timing.h"
#include "topology.h"

namespace ns_dist {
namespace {

using network::kKnots;

// Modelled time and measured over modelled, one row.
struct Point {
  double bytes, modelled, log_ratio;
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
  // How much the measurements of a size of a machine pull the curve to themselves, 0 to 1 (the diagonal of the hat
  // matrix): without them, it would be off by 1 / (1 - leverage) times as much there.
  std::map<std::pair<std::size_t, double>, double> leverage;  // by cluster and bytes

  double exaggeration(const Point& point) const {
    constexpr double kMost = 10;  // all but interpolated: says nothing beyond
    const auto found = leverage.find({point.cluster, point.bytes});
    return found == leverage.end() ? 1 : 1 / std::max(1 - found->second, 1 / kMost);
  }
};

// Least squares for a piecewise linear function with penalised second differences, and steps at `switches` with
// penalised heights. A step that would go down is dropped: the function has to grow.
Curve fit_curve(const std::vector<Point>& points, std::vector<double> switches, double smoothness) {
  std::map<double, double> rows_of_size;  // every size counts once, however often it was measured
  for (const Point& point : points) rows_of_size[point.bytes] += 1;
  double first = static_cast<double>(kKnots), last = 0;
  for (const Point& point : points) {
    first = std::min(first, network::knot_coordinate(point.modelled));
    last = std::max(last, network::knot_coordinate(point.modelled));
  }
  std::erase_if(switches, [&](double position) { return position <= first || position >= last; });

  Curve curve;
  std::vector<double> solution;
  for (;;) {
    const std::size_t n = kKnots + switches.size();
    std::vector<std::vector<double>> matrix(n, std::vector<double>(n, 0));
    std::vector<double> right(n, 0);
    struct Place {
      Basis basis;
      double weight = 0;
    };
    std::map<std::pair<std::size_t, double>, Place> bases;
    for (const Point& point : points) {
      const double x = network::knot_coordinate(point.modelled);
      const auto k = std::min(static_cast<std::size_t>(x), kKnots - 2);
      Basis basis = {{k, 1 - (x - static_cast<double>(k))}, {k + 1, x - static_cast<double>(k)}};
      for (std::size_t i = 0; i < switches.size(); ++i) {
        basis.emplace_back(kKnots + i, network::step_share(x, switches[i]));
      }
      const double weight = 1 / rows_of_size[point.bytes];
      auto& [kept, weights] = bases[{point.cluster, point.bytes}];
      kept = basis;
      weights += weight;
      for (const auto& [i, a] : basis) {
        right[i] += weight * a * point.log_ratio;
        for (const auto& [j, b] : basis) {
          if (j <= i) matrix[i][j] += weight * a * b;
        }
      }
    }
    for (std::size_t k = 1; k + 1 < kKnots; ++k) {
      constexpr std::array<double, 3> kSecond = {1, -2, 1};
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j <= i; ++j) matrix[k - 1 + i][k - 1 + j] += smoothness * kSecond[i] * kSecond[j];
      }
    }
    constexpr double kFlatness = 1e-6;  // ties knots without data to their neighbours
    for (std::size_t k = 0; k + 1 < kKnots; ++k) {
      matrix[k][k] += kFlatness;
      matrix[k + 1][k + 1] += kFlatness;
      matrix[k + 1][k] -= kFlatness;
    }
    constexpr double kHeightPenalty = 0.02;
    for (std::size_t i = kKnots; i < n; ++i) matrix[i][i] += kHeightPenalty;
    solution = solve(matrix, std::move(right));
    std::size_t lowest = kKnots;
    for (std::size_t i = kKnots; i < n; ++i) lowest = solution[i] < solution[lowest] ? i : lowest;
    constexpr double kLeastHeight = 0.02;
    if (n == kKnots || solution[lowest] > kLeastHeight) {
      for (const auto& [place, found] : bases) {
        std::vector<double> unit(n, 0);
        for (const auto& [i, a] : found.basis) unit[i] = a;
        const std::vector<double> pulled = solve(matrix, unit);
        double& leverage = curve.leverage[place];
        for (const auto& [i, a] : found.basis) leverage += found.weight * a * pulled[i];
      }
      break;
    }
    switches.erase(switches.begin() + static_cast<std::ptrdiff_t>(lowest - kKnots));
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

// `shared`, and what is left of the points over it.
Curve on_top_of(const Curve& shared, std::vector<Point> points, double smoothness) {
  for (Point& point : points) point.log_ratio -= shared.correction.log_ratio(point.modelled);
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

// Standard deviations around the curve, with every size of every machine left out of it, of long messages and short
// ones; where there are none of the one, the other's. Counts as well.
struct Spread {
  std::array<double, 2> deviation{};  // [0]: from kLongMessage
  std::array<std::size_t, 2> count{};
};
Spread spread_of(const Curve& fitted, const std::vector<Point>& points) {
  const auto residual = [&](const Point& point) {
    return point.log_ratio - fitted.correction.log_ratio(point.modelled);
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
    constexpr double kShare = 0.9, kQuantile = 1.645;
    const auto place = static_cast<std::size_t>(std::ceil(kShare * static_cast<double>(errors[i].size()))) - 1;
    const auto nth = errors[i].begin() + static_cast<std::ptrdiff_t>(place);
    std::nth_element(errors[i].begin(), nth, errors[i].end());
    spread.deviation[i] = *nth / kQuantile;
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

// A few measurements do not say how far the next will be off: what is known counts as much as four of them.
constexpr double kUnknownDeviation = 0.15;
double deviation_of_few(double measured, std::size_t count, double known) {
  constexpr double kPrior = 4;
  const auto n = static_cast<double>(count);
  return std::sqrt((n * measured * measured + kPrior * known * known) / (n + kPrior));
}

struct Machine {
  network::Topology topology;
  std::vector<network::Link> links;
};

// Knot coordinates of the modelled times at which the modelled choice changes, 512 B to 1 GiB.
std::vector<double> switches_of(network::Call call, network::Means means) {
  std::vector<double> switches;
  const char* method = nullptr;
  constexpr double kFinest = 1.0 / 32;  // octaves
  for (double octave = 9; octave <= 30; octave += kFinest) {
    call.bytes = std::exp2(octave);
    const network::Choice choice = network::choose(call, {}, means);
    const char* next = choice.algorithm->methods[static_cast<std::size_t>(choice.protocol)].data();
    if (method && next != method) switches.push_back(network::knot_coordinate(choice.cost.time()));
    method = next;
  }
  return switches;
}

}  // namespace

Result<RankGroup> measured_group(const Cluster& cluster, std::int64_t ranks, std::int64_t ranks_per_node) {
  if (ranks < 1 || ranks_per_node < 1 || ranks % ranks_per_node != 0) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("{} ranks, {} in each node", ranks, ranks_per_node),
                 "",
                 "positive numbers, the second a divisor of the first",
                 "",
                 {}});
  }
  // A node is what the network joins: all levels below the first network level.
  std::int64_t node = 1;
  for (const FabricLevel& level : cluster.levels) {
    if (network::link_class_of(level.fabric.kind) == network::LinkClass::kNetwork) break;
    if (level.size == 0) return RankGroup{0, {{ranks, 1}}};  // an open node holds them all
    node *= level.size;
  }
  if (ranks_per_node > node) {
    return fail({ErrorCode::kInfeasible,
                 fmt::format("{} ranks in a node of \"{}\", which has {} GPUs", ranks_per_node, cluster.id, node),
                 "",
                 fmt::format("at most {}", node),
                 "",
                 {}});
  }
  if (ranks == ranks_per_node) return RankGroup{0, {{ranks, 1}}};
  return RankGroup{0, {{ranks_per_node, 1}, {ranks / ranks_per_node, node}}};
}

Result<NetworkCalibration> fit_network(std::span<const Cluster> clusters,
                                       std::span<const CollectiveMeasurement> measurements,
                                       const NetworkFitOptions& options) {
  if (measurements.empty()) {
    return fail({ErrorCode::kInvalidInput, "no measurements", "", "at least one collective", "", {}});
  }
  std::vector<Machine> machines;
  std::vector<network::Calibration> bases;
  for (const Cluster& cluster : clusters) {
    NS_TRY(network::Topology topology, network::Topology::of(cluster));
    std::vector<network::Link> links;
    for (const FabricLevel& level : cluster.levels) links.push_back(network::link_of(level, cluster.gpu));
    machines.push_back({std::move(topology), std::move(links)});
    if (options.base) bases.emplace_back(*options.base, cluster);
  }

  struct Group {
    std::vector<Point> points;
    std::vector<double> switches;
    std::array<const network::Corrected*, 2> known{};  // by means
    bool has_switch = false;
  };
  using Key = std::tuple<std::string, std::string, std::string, CollectiveKind, std::int64_t, std::int64_t, bool, bool>;
  std::map<Key, Group> groups;
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    const CollectiveMeasurement& m = measurements[i];
    const std::string where = fmt::format("measurement {}", i + 1);
    const double bytes = m.size / units::B, seconds = m.latency / units::s;
    if (m.cluster >= clusters.size()) {
      return fail({ErrorCode::kInvalidInput, fmt::format("cluster {} is not there", m.cluster), where, "", "", {}});
    }
    if (!std::isfinite(bytes) || bytes <= 0 || !std::isfinite(seconds) || seconds <= 0) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("{} bytes in {} s", bytes, seconds),
                   where,
                   "a positive size and a positive latency",
                   "",
                   {}});
    }
    const Cluster& cluster = clusters[m.cluster];
    NS_TRY(const RankGroup group, measured_group(cluster, m.ranks, m.ranks_per_node));
    NS_TRY(const network::Placement placement, machines[m.cluster].topology.place(group));
    const network::Call call{m.kind, bytes, m.integer, 1, &placement, machines[m.cluster].links.data()};
    network::Choice choice, in_switch;
    if (placement.tier_count > 0) {
      choice = network::choose(call, {}, network::Means::kMessages);
      in_switch = network::choose(call, {}, network::Means::kSwitch);
    }
    if (!choice.algorithm) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("a {} between {} ranks", name_of(m.kind), m.ranks),
                   where,
                   "a collective of at least two ranks",
                   "",
                   {}});
    }
    // Where the switch can reduce, a long message says how fast the switch does it: messages between ranks are seen in
    // the integer rows, which the switch does not reduce, and in short ones.
    constexpr double kShort = 1 << 20;
    bool by_switch = in_switch.algorithm && bytes >= kShort;
    // Beside what is known, the one that the model would choose.
    std::array<const network::Corrected*, 2> known{};
    double expected = 1;  // over the modelled time
    if (options.base) {
      for (const network::Means means : network::kAllMeans) {
        known[static_cast<std::size_t>(means)] = bases[m.cluster].find(call, means);
      }
      const auto corrected = [&](const network::Choice& of, const network::Corrected* by) {
        return by ? by->correction.apply(of.cost.time()) : of.cost.time();
      };
      by_switch = in_switch.algorithm && corrected(in_switch, known[1]) < corrected(choice, known[0]);
      const network::Choice& chosen = by_switch ? in_switch : choice;
      expected = corrected(chosen, known[by_switch ? 1 : 0]) / chosen.cost.time();
    }
    if (by_switch) choice = in_switch;
    const network::Link& outermost = call.link(placement.tiers[placement.tier_count - 1]);
    const bool integer = m.integer && (m.kind == CollectiveKind::kReduceScatter || m.kind == CollectiveKind::kReduce);
    Group& found =
        groups[{options.for_one_cluster ? cluster.id : std::string(), std::string(name_of(outermost.link_class)),
                std::string(network::family_of(cluster.gpu.architecture)), m.kind, m.ranks, m.ranks_per_node,
                by_switch && !options.base, integer}];
    if (found.points.empty())
      found.switches = switches_of(call, by_switch ? network::Means::kSwitch : network::Means::kMessages);
    found.known = known;
    found.has_switch = in_switch.algorithm != nullptr;
    found.points.push_back({bytes, choice.cost.time(), std::log(seconds / (expected * choice.cost.time())), m.cluster});
  }

  NetworkCalibration result;
  result.source = options.source;
  if (options.base) {
    for (const auto& [key, group] : groups) {
      CalibrationCurve curve;
      std::tie(curve.cluster, curve.fabric, curve.architecture, curve.kind, curve.ranks, curve.ranks_per_node,
               curve.in_switch, curve.integer) = key;
      // The same difference whether the switch reduces or not: otherwise the choice would go to what was not measured.
      const Curve difference = fit_curve(group.points, {}, options.apart);
      const Spread spread = spread_of(difference, group.points);
      const bool both = group.has_switch && curve.fabric != network::name_of(network::LinkClass::kNetwork);
      for (const bool in_switch : {false, true}) {
        if (in_switch && !both) continue;
        curve.in_switch = in_switch;
        const network::Corrected* known = group.known[in_switch ? 1 : 0];
        curve.log_ratio.assign(difference.knots.begin(), difference.knots.end());
        curve.steps.clear();
        if (known) {
          for (std::size_t k = 0; k < kKnots; ++k) curve.log_ratio[k] += known->correction.knots()[k];
          for (const network::Step& step : known->correction.steps()) {
            curve.steps.push_back({network::time_at(step.position) * units::s, step.height});
          }
        }
        curve.deviation =
            deviation_of_few(spread.deviation[0], spread.count[0], known ? known->deviation : kUnknownDeviation);
        curve.deviation_short =
            deviation_of_few(spread.deviation[1], spread.count[1], known ? known->deviation_short : kUnknownDeviation);
        result.curves.push_back(curve);
      }
    }
    return result;
  }

  // All-gathers and reduce-scatters of a group move the same bytes over the same links and change protocols together:
  // one curve for both, and for each what is left, which is smooth.
  std::map<Key, Group> pools;
  const auto pool_of = [](Key key) {
    if (std::get<3>(key) == CollectiveKind::kReduceScatter) std::get<3>(key) = CollectiveKind::kAllGather;
    std::get<7>(key) = false;
    return key;
  };
  for (const auto& [key, group] : groups) {
    Group& pool = pools[pool_of(key)];
    pool.points.insert(pool.points.end(), group.points.begin(), group.points.end());
    if (pool.switches.empty()) pool.switches = group.switches;
  }
  std::map<Key, Curve> pooled;
  for (const auto& [key, pool] : pools) pooled[key] = fit_curve(pool.points, pool.switches, options.smoothness);

  for (const auto& [key, group] : groups) {
    CalibrationCurve curve;
    std::tie(curve.cluster, curve.fabric, curve.architecture, curve.kind, curve.ranks, curve.ranks_per_node,
             curve.in_switch, curve.integer) = key;
    const Curve fitted = on_top_of(pooled[pool_of(key)], group.points, options.apart);
    describe(curve, fitted, group.points);
    result.curves.push_back(curve);
    std::map<std::string, std::vector<Point>> by_gpu;
    for (const Point& point : group.points) by_gpu[clusters[point.cluster].gpu.id].push_back(point);
    if (by_gpu.size() == 1) continue;
    // What sets the machines of a family apart.
    for (const auto& [gpu, points] : by_gpu) {
      curve.gpu = gpu;
      describe(curve, on_top_of(fitted, points, options.apart), points);
      result.curves.push_back(curve);
    }
  }
  return result;
}

}  // namespace ns_dist
