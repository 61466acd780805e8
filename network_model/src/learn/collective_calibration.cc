#include "ns_dist/collective_calibration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "ns_dist/error_figures.h"
#include "ns_dist/internal/with_commas.h"

namespace ns_dist {
namespace {

using Rows = std::vector<MeasuredCollective>;

// What shares a curve.
auto group_of(const MeasuredCollective& m) { return std::tuple(m.row.kind, m.row.ranks, m.row.gpus_per_node); }
// Rows of one collective are measured again.
auto collective_of(const MeasuredCollective& m) {
  return std::tuple(group_of(m), m.row.size, m.row.integer, m.row.imbalance);
}

std::string text_of_group(const CollectiveRow& row) {
  return fmt::format("{} of {} ranks{}", name_of(row.kind), row.ranks,
                     row.gpus_per_node > 0 ? fmt::format(", {} in a node", row.gpus_per_node) : "");
}

double mean_error(const std::vector<double>& logs) {
  double sum = 0;
  for (const double log : logs) sum += std::abs(std::exp(-log) - 1);
  return sum / static_cast<double>(logs.size());
}

Error bad_table(std::string where, std::string message, std::string expected) {
  return {ErrorCode::kInvalidInput, std::move(message), std::move(where), std::move(expected)};
}

Seconds time_of(const MeasuredCollective& m) { return *m.row.latency_ms * units::ms; }

// ln(measured / forecast) of each row.
std::vector<double> errors_of(const Rows& rows, const std::vector<Forecast>& forecasts) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < rows.size(); ++i) errors.push_back(std::log(time_of(rows[i]) / forecasts[i].latency));
  return errors;
}

class Calibrator {
 public:
  explicit Calibrator(const Cluster& cluster) : cluster_(cluster) {}

  Result<NetworkCalibration> fit(const Rows& rows) const {
    NetworkFitOptions options;
    options.source = fmt::format("{} measured collectives on {}", rows.size(), cluster_.id);
    options.for_one_cluster = true;
    options.base = &builtin_network_calibration();
    std::vector<CollectiveRow> measured;
    for (const MeasuredCollective& m : rows) {
      measured.push_back(m.row);
      options.places.push_back(m.place);
    }
    return fit_rows(measured, resolver(), options);
  }

  // Of each row; without curves, as forecasts are without a correction.
  Result<std::vector<Forecast>> forecasts(const Rows& rows, const NetworkCalibration* curves) const {
    NetworkModelOptions options;
    if (curves) options.calibration = std::make_shared<const NetworkCalibration>(before_builtin(*curves));
    CollectiveForecaster forecaster(resolver(), std::move(options));
    std::vector<Forecast> found;
    for (const MeasuredCollective& m : rows) {
      auto answer = forecaster.forecast(m.row);
      if (!answer && answer.error().where.empty()) answer.error().where = m.place;
      if (!answer) return fail(answer.error());
      found.push_back(answer->forecast);
    }
    return found;
  }
  Result<std::vector<double>> errors(const Rows& rows, const NetworkCalibration* curves) const {
    NS_TRY(const std::vector<Forecast> found, forecasts(rows, curves));
    return errors_of(rows, found);
  }

  struct LeftOut {
    std::vector<double> errors;  // of each row, by the other collectives
    std::vector<double> wild;    // its square over what the others of its group suggest
  };
  Result<LeftOut> leave_out(const Rows& rows) const {
    constexpr std::size_t kMostParts = 100, kLeastParts = 5, kFits = 1'000'000;  // rows of all fits together
    std::map<decltype(collective_of(rows.front())), std::size_t> number;
    for (const MeasuredCollective& m : rows) number.try_emplace(collective_of(m), number.size());
    const std::size_t parts =
        std::min({number.size(), kMostParts, std::max(kLeastParts, kFits / std::max<std::size_t>(rows.size(), 1))});
    LeftOut found{std::vector<double>(rows.size()), std::vector<double>(rows.size())};
    for (std::size_t part = 0; part < parts; ++part) {
      Rows held_out, others;
      std::vector<std::size_t> index;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool out = number.at(collective_of(rows[i])) % parts == part;
        if (out) index.push_back(i);
        (out ? held_out : others).push_back(rows[i]);
      }
      const auto curves = others.empty() ? fail(Error{}) : fit(others);  // none: they tell nothing of the network
      NS_TRY(const std::vector<double> errors, this->errors(held_out, curves ? &*curves : nullptr));
      NS_TRY(const std::vector<double> rest, this->errors(others, curves ? &*curves : nullptr));
      for (std::size_t i = 0; i < index.size(); ++i) {
        found.errors[index[i]] = errors[i];
        found.wild[index[i]] = errors[i] * errors[i] / expected_square(held_out[i], others, rest);
      }
    }
    return found;
  }

 private:
  // Of the error of a row, given those of the other rows of its group: as large as their median, for where a wild
  // row is among them, their curve fits none of them; and as that of a forecast without a correction at least, for the
  // ends of a range of sizes are further off than its middle.
  static double expected_square(const MeasuredCollective& row, const Rows& others, const std::vector<double>& errors) {
    constexpr double kUncorrected = 0.15;  // the deviation: kUnknownDeviation of network_fit.cc
    constexpr double kMiddle = 0.6745;     // of a normal distribution's sizes
    std::vector<double> sizes;
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (group_of(others[i]) == group_of(row)) sizes.push_back(std::abs(errors[i]));
    }
    const double deviation = std::max(kUncorrected, median_of(std::move(sizes)) / kMiddle);
    return deviation * deviation;
  }

  ClusterResolver resolver() const {
    return [this](auto, auto) -> Result<Cluster> { return cluster_; };
  }

  const Cluster& cluster_;
};

// Takes out groups of fewer than kFewestSizes.
void take_out_few(Rows& rows, std::vector<std::string>& notes) {
  std::map<decltype(group_of(rows.front())), std::set<Bytes>> sizes;
  for (const MeasuredCollective& m : rows) sizes[group_of(m)].insert(m.row.size);
  for (const auto& [group, of_group] : sizes) {
    if (of_group.size() >= kFewestSizes || std::get<0>(group) == CollectiveKind::kBarrier) continue;
    const auto is_of_it = [&, &group = group](const MeasuredCollective& m) { return group_of(m) == group; };
    notes.push_back(fmt::format("{}: {}, and a correction needs {}, for one tells little of others: left out",
                                text_of_group(std::find_if(rows.begin(), rows.end(), is_of_it)->row),
                                counted(of_group.size(), "size"), kFewestSizes));
    std::erase_if(rows, is_of_it);
  }
}

// `beyond`: ln(measured / what the others suggest).
std::string unlike_others(const MeasuredCollective& m, double beyond) {
  return fmt::format("{}: left out, because it takes {:.3g} times as long as the other rows suggest", m.place,
                     std::exp(beyond));
}

// Takes out what is no measurement of this cluster, however it is corrected:
// * groups whose middle row takes more than `most_off` times as long as forecast, or as short: they are in another
// unit;
// * rows thirty times as long, or as short, against the forecast as the median of their group. Of wild rows so far off
//   any number below a half is found at once;
// * rows that are faster than the links of the data sheet allow, by more than what such sheets round.
// The factors are chosen, not fitted. `forecasts`, `off`: by row, without a correction, and its errors_of. Error: of
// the rows that the first two leave, most are too fast.
Result<void> take_out_impossible(const std::vector<Forecast>& forecasts, const std::vector<double>& off,
                                 double most_off, const std::string& where, Rows& rows,
                                 std::vector<std::string>& notes) {
  constexpr double kGross = 3.4;  // ln(30)
  constexpr double kRounded = 0.95;
  std::map<decltype(group_of(rows.front())), std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) groups[group_of(rows[i])].push_back(i);
  std::vector<double> medians(rows.size());  // by row, of its group
  for (const auto& [group, index] : groups) {
    std::vector<double> of_group;
    for (const std::size_t i : index) of_group.push_back(off[i]);
    const double median = median_of(std::move(of_group));
    for (const std::size_t i : index) medians[i] = median;
    if (std::abs(median) <= std::log(most_off)) continue;
    notes.push_back(
        fmt::format("{}: the middle one takes {:.4g} times as long as forecast: left out; is latency_ms in "
                    "milliseconds there?",
                    text_of_group(rows[index.front()].row), std::exp(median)));
  }
  Rows kept;
  std::size_t too_fast = 0;
  std::string first;  // of these
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::abs(medians[i]) > std::log(most_off)) continue;
    if (const double beyond = off[i] - medians[i]; std::abs(beyond) > kGross) {
      notes.push_back(unlike_others(rows[i], beyond));
    } else if (time_of(rows[i]) < kRounded * forecasts[i].floor) {
      if (too_fast++ == 0) first = rows[i].place;
    } else {
      kept.push_back(std::move(rows[i]));
    }
  }
  rows = std::move(kept);
  if (too_fast > rows.size()) {
    return fail(
        bad_table(where,
                  fmt::format("{} of {} rows are faster than the links of the data sheet allow", too_fast,
                              too_fast + rows.size()),
                  "bytes of the whole buffer, ranks, and latency_ms in milliseconds, measured on this cluster"));
  }
  if (too_fast > 0) {
    notes.push_back(
        fmt::format("{} row{} faster than the links of the data sheet allow ({}{}): left out; check bytes "
                    "(of the whole buffer), ranks and the unit of time",
                    too_fast, too_fast == 1 ? " is" : "s are", first, too_fast == 1 ? "" : ", ..."));
  }
  return {};
}

// Takes out the rows that nothing explains, the wildest of each group at a time.
Result<std::vector<double>> take_out_wild(const Calibrator& calibrator, Rows& rows, std::vector<std::string>& notes) {
  // Standard deviations, as of kernels. Source: of 1,456 rows of five GPUs that were forecast as another one (five or
  // eight sizes of each collective) none is taken out; of 20 that were made 3 times as long, and of 20 made 1,000
  // times, all are.
  constexpr double kWild = 5;
  constexpr int kMostRounds = 20;
  for (int round = 1;; ++round) {
    NS_TRY(const Calibrator::LeftOut left_out, calibrator.leave_out(rows));
    std::map<decltype(group_of(rows.front())), std::size_t> wildest;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!(left_out.wild[i] > kWild * kWild)) continue;
      const auto [known, is_new] = wildest.try_emplace(group_of(rows[i]), i);
      if (!is_new && left_out.wild[i] > left_out.wild[known->second]) known->second = i;
    }
    if (wildest.empty()) return left_out.errors;
    if (round == kMostRounds) {
      notes.push_back("more rows than were left out take another time than the others suggest: measure them anew");
      return left_out.errors;
    }
    std::vector<std::size_t> out;
    for (const auto& [group, i] : wildest) out.push_back(i);
    std::sort(out.begin(), out.end(), std::greater<>());
    for (const std::size_t i : out) {
      notes.push_back(unlike_others(rows[i], left_out.errors[i]));
      rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
    }
    take_out_few(rows, notes);
    if (rows.empty()) return std::vector<double>();
  }
}

void note_contradictions(const Rows& rows, std::vector<std::string>& notes) {
  constexpr double kContradicts = 1.25;  // longest over shortest
  std::map<decltype(collective_of(rows.front())), std::vector<std::size_t>> again;
  for (std::size_t i = 0; i < rows.size(); ++i) again[collective_of(rows[i])].push_back(i);
  double most = kContradicts;
  std::pair<std::size_t, std::size_t> worst;  // the shortest and the longest
  std::size_t count = 0;
  const auto latency = [&](std::size_t i) { return *rows[i].row.latency_ms; };
  for (const auto& [collective, index] : again) {
    const auto [least, longest] = std::minmax_element(
        index.begin(), index.end(), [&](std::size_t a, std::size_t b) { return latency(a) < latency(b); });
    const double factor = latency(*longest) / latency(*least);
    if (!(factor > kContradicts)) continue;
    ++count;
    if (factor > most) most = factor, worst = {*least, *longest};
  }
  if (count == 0) return;
  const CollectiveRow& row = rows[worst.first].row;
  notes.push_back(fmt::format(
      "{} collective{} rows that contradict each other, most of all {}, {}: one takes {:.3g} times as long as another "
      "({}, {})",
      count, count == 1 ? " has" : "s have", text_of_group(row), to_text(row.size), most, rows[worst.second].place,
      rows[worst.first].place));
}

}  // namespace

Result<CollectiveCalibration> calibrate_collectives(const Cluster& cluster, Rows rows, const std::string& where) {
  constexpr double kMostOff = 20;  // times as long as forecast, or as short: the middle row of a table in another unit
  if (rows.empty()) return fail(bad_table(where, "no rows", "measured collectives"));
  // Full nodes are those of rows that say nothing.
  for (MeasuredCollective& m : rows) {
    const std::int64_t full = ranks_of_full_nodes(cluster, m.row.ranks);
    if (m.row.gpus_per_node == full && m.row.ranks % full == 0) m.row.gpus_per_node = 0;
  }
  const Calibrator calibrator(cluster);
  NS_TRY(const std::vector<Forecast> uncorrected, calibrator.forecasts(rows, nullptr));
  const std::vector<double> off = errors_of(rows, uncorrected);
  std::vector<double> by_size = off;
  std::sort(by_size.begin(), by_size.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  if (const double middle = by_size[(by_size.size() - 1) / 2]; std::abs(middle) > std::log(kMostOff)) {
    return fail(bad_table(where, fmt::format("the middle row takes {:.4g} times as long as forecast", std::exp(middle)),
                          "latency_ms, in milliseconds, measured on this cluster"));
  }
  CollectiveCalibration found;
  NS_TRY_VOID(take_out_impossible(uncorrected, off, kMostOff, where, rows, found.notes));
  take_out_few(rows, found.notes);
  std::vector<double> by_others;
  if (!rows.empty()) {
    NS_TRY_VOID(calibrator.fit(rows));  // its errors
    NS_TRY(by_others, take_out_wild(calibrator, rows, found.notes));
  }
  if (rows.empty()) {
    Error error = bad_table(where, fmt::format("too few measurements of {}", cluster.id),
                            fmt::format("at least {} sizes of one collective on one number of ranks", kFewestSizes));
    error.hint = fmt::format("{}", fmt::join(found.notes, "; "));
    return fail(std::move(error));
  }
  note_contradictions(rows, found.notes);
  NS_TRY(found.curves, calibrator.fit(rows));
  if (!read_network_calibration(to_json(found.curves), where)) {  // what is written can be read
    return fail(bad_table(where, "no correction is large enough for these rows",
                          "bytes in bytes and latency_ms in milliseconds, measured on this cluster"));
  }
  NS_TRY(const std::vector<double> without, calibrator.errors(rows, nullptr));
  if (const std::size_t count = found.curves.left_out.size(); count > 0) {
    found.notes.push_back(fmt::format(
        "{} of the rows {} nothing of the network ({}{}): what stays in a node takes longer there", count,
        count == 1 ? "tells" : "tell", rows[found.curves.left_out.front()].place, count == 1 ? "" : ", ..."));
  }
  found.rows = rows.size() - found.curves.left_out.size();
  found.before = mean_error(without), found.after = mean_error(by_others);
  return found;
}

}  // namespace ns_dist
