#include "ns_dist/kernel_calibration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "analytic_model.h"
#include "calibration.h"
#include "ns_dist/error_figures.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/with_commas.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/operator_text.h"

namespace ns_dist {
namespace {

using Json = nlohmann::ordered_json;

// 2: weights of another covariance than those of 1; 3: errors of single kernels.
constexpr std::string_view kSchema = "ns-dist/kernel-calibration/3";
constexpr double kLargestError = 1e9;   // of FamilyCalibration::before and after
constexpr double kMostCorrected = 2.0;  // a logarithm: no forecast becomes more than 7.4 times as long, or as short

// Of the time at the peak rate: clocks may be above the one of the data sheet, but never by so much.
constexpr double kFastest = 0.5;

struct MeasuredRow {
  std::int64_t line = 0;  // of the table
  double beyond = 0;      // what it has beyond the kernel's residual
};

struct Observation {
  CalibrationPlace x = {};
  double residual = 0;  // ln(measured / forecast), of several rows the mean
  double floor = 0;     // ln(floor / forecast): no correction makes the forecast shorter
  std::vector<MeasuredRow> rows = {};
  double scatter() const {  // variance of the rows
    double sum = 0;
    for (const MeasuredRow& row : rows) sum += row.beyond * row.beyond;
    return sum / static_cast<double>(rows.size());
  }
  double noise() const { return scatter() / static_cast<double>(rows.size()); }  // variance of their mean
  void center() {
    double mean = 0;
    for (const MeasuredRow& row : rows) mean += row.beyond / static_cast<double>(rows.size());
    residual += mean;
    for (MeasuredRow& row : rows) row.beyond -= mean;
  }
};

// What makes another kernel of the same sizes.
constexpr std::array<std::string_view, 15> kKindMembers = {
    "causal",    "window", "pass",       "library", "deterministic", "scaling", "layout",    "epilogue",
    "quantizes", "kind",   "one_kernel", "name",    "inputs",        "outputs", "by_element"};

// Calls `visit(name, word)` for each "name=value" of a kind.
template <class Visit>
void for_each_member(std::string_view kind, Visit&& visit) {
  while (!kind.empty()) {
    const std::string_view word = kind.substr(0, kind.find(' '));
    kind.remove_prefix(std::min(kind.size(), word.size() + 1));
    visit(word.substr(0, word.find('=')), word);
  }
}

// In how many members two kinds differ.
int differences(std::string_view a, std::string_view b) {
  if (a == b) return 0;
  int count = 0;
  for_each_member(a, [&](std::string_view, std::string_view word) {
    bool same = false;
    for_each_member(b, [&](std::string_view, std::string_view other) { same = same || other == word; });
    if (!same) ++count;
  });
  for_each_member(b, [&](std::string_view name, std::string_view) {
    bool known = false;
    for_each_member(a, [&](std::string_view other, std::string_view) { known = known || other == name; });
    if (!known) ++count;
  });
  return count;
}

// Of places or points, by their sizes alone: 1 at the same place.
template <class A, class B>
double nearness(const A& a, const B& b) {
  constexpr double kReach = 1.4;
  const double d0 = a.duration - b.duration, d1 = a.ridge - b.ridge;
  return std::exp(-(d0 * d0 + d1 * d1) / (2 * kReach * kReach));
}

// Of places or points. The constants: calibration.h.
template <class A, class B>
double covariance(const A& a, const B& b) {
  constexpr double kCommon = 0.15 * 0.15, kKind = 0.12 * 0.12, kLocal = 0.16 * 0.16, kOwn = 0.07 * 0.07;
  constexpr double kUnlike = 0.85;
  double alike = kKind + kLocal * nearness(a, b);
  for (int i = differences(a.kind, b.kind); i > 0; --i) alike *= kUnlike;
  return kCommon + alike + (a.kernel == b.kernel ? kOwn : 0);
}

// Covariances of `x` and each point.
std::vector<double> covariances(const std::vector<FamilyCalibration::Point>& points, const CalibrationPlace& x) {
  std::vector<double> all;
  all.reserve(points.size());
  for (const FamilyCalibration::Point& point : points) all.push_back(covariance(x, point));
  return all;
}

// Standard deviation of ln(measured / corrected forecast) at `x`, by the measurements that tell most of it (Rasmussen
// and Williams 2006, eq. 2.26); all others make it hardly smaller. `of_x`: the covariances. The point of index
// `without` is left out.
double deviation_at(const std::vector<FamilyCalibration::Point>& points, const CalibrationPlace& x,
                    const std::vector<double>& of_x, std::optional<std::size_t> without = std::nullopt) {
  constexpr std::size_t kMost = 24;
  std::vector<std::pair<double, std::size_t>> told;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i != without) told.emplace_back(of_x[i], i);
  }
  const std::size_t count = std::min(told.size(), kMost);
  std::partial_sort(told.begin(), told.begin() + static_cast<std::ptrdiff_t>(count), told.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  const auto n = static_cast<Eigen::Index>(count);
  Eigen::MatrixXd k(n, n);
  Eigen::VectorXd across(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const auto& [with_x, point] = told[static_cast<std::size_t>(i)];
    across(i) = with_x;
    for (Eigen::Index j = 0; j <= i; ++j) {
      k(i, j) = k(j, i) = covariance(points[point], points[told[static_cast<std::size_t>(j)].second]);
    }
    k(i, i) += kCalibrationScatter;
  }
  const double known = n > 0 ? across.dot(k.ldlt().solve(across)) : 0;
  return std::sqrt(std::max(kCalibrationScatter, covariance(x, x) + kCalibrationScatter - known));
}

// Rows of one kernel are one observation: what was measured again tells nothing of others.
std::vector<Observation> by_kernel(const std::vector<Observation>& rows) {
  std::vector<Observation> kernels;
  std::map<std::string_view, std::size_t> known;
  for (const Observation& row : rows) {
    const auto [found, is_new] = known.try_emplace(row.x.kernel, kernels.size());
    if (is_new) kernels.push_back({row.x, 0, row.floor, {}});
    kernels[found->second].rows.push_back({row.rows.front().line, row.residual});
  }
  for (Observation& kernel : kernels) kernel.center();
  return kernels;
}

// Evenly over the kernels where there are more than are needed.
std::vector<Observation> as_many_as_needed(std::vector<Observation> all) {
  if (all.size() <= FamilyCalibration::kMostPoints) return all;
  std::vector<Observation> kernels;
  for (std::size_t i = 0; i < FamilyCalibration::kMostPoints; ++i)
    kernels.push_back(std::move(all[i * all.size() / FamilyCalibration::kMostPoints]));
  return kernels;
}

// Residuals of the process's own size have a quadratic form of their number (Rasmussen and Williams 2006, s.9.9: a
// Student-t process, whose prior counts as kPrior measurements). The square of how large they are against it.
double size_of_residuals(double quadratic, std::size_t count) {
  constexpr double kPrior = 8;
  return (kPrior + std::max(0.0, quadratic)) / (kPrior + static_cast<double>(count));
}

struct Process {
  Eigen::MatrixXd inverse;            // of the covariance
  Eigen::VectorXd residual, weights;  // as far as a correction goes; of each in the mean
  // What each kernel took beyond what the others say: ln(measured / corrected forecast), residual and correction as far
  // as a correction goes (Rasmussen and Williams 2006, eq. 5.12).
  double left_out(Eigen::Index i) const { return weights(i) / inverse(i, i); }
};

Process process_of(const std::vector<Observation>& kernels) {
  const auto n = static_cast<Eigen::Index>(kernels.size());
  Eigen::MatrixXd k(n, n);
  Process process;
  process.residual.resize(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const Observation& own = kernels[static_cast<std::size_t>(i)];
    for (Eigen::Index j = 0; j <= i; ++j) k(i, j) = k(j, i) = covariance(own.x, kernels[static_cast<std::size_t>(j)].x);
    k(i, i) += kCalibrationScatter + own.noise();
    process.residual(i) = std::clamp(own.residual, -kMostCorrected, kMostCorrected);
  }
  process.inverse = k.ldlt().solve(Eigen::MatrixXd::Identity(n, n));
  process.weights = process.inverse * process.residual;
  return process;
}

// Variance of rows of one kernel, which wild ones do not widen: the median of the squares of how far rows are from the
// middle of their kernel's, over that of a normal distribution. Of two rows either may be wild, so it is no more than
// that of 30 %.
double usual_scatter(const std::vector<Observation>& kernels) {
  constexpr double kMost = 0.3 * 0.3;
  std::vector<double> squares;
  for (const Observation& kernel : kernels) {
    if (kernel.rows.size() < 2) continue;
    std::vector<double> rows;
    for (const MeasuredRow& row : kernel.rows) rows.push_back(row.beyond);
    const double center = median_of(rows);
    for (const double row : rows) squares.push_back((row - center) * (row - center));
  }
  constexpr double kOfNormal = 0.6745 * 0.6745;
  return std::min(median_of(std::move(squares)) / kOfNormal, kMost);
}

// Takes out the rows that nothing explains, the wildest first: what a row took beyond what the other kernels say is
// more than kWild of the standard deviations that they expect, given how large the residuals of all others are (a
// studentized deleted residual; Cook and Weisberg 1982, ch. 2). A machine that is slow as a whole, or in a pass,
// keeps its rows. Source of kWild: of 28,824 measured rows (compute_model/tried.md) 91 are taken out, and held-out
// errors stay as they are; of rows that were made 1,000 times as long all are found, of those 3 times as long 91 %.
std::vector<std::pair<std::int64_t, double>> take_out_wild(std::vector<Observation>& kernels) {
  constexpr double kWild = 5;
  const double usual = usual_scatter(kernels);
  Process process = process_of(kernels);
  std::vector<std::pair<std::int64_t, double>> wild;  // lines, and how many times as long as expected
  std::size_t left = kernels.size();
  while (left > 1) {
    const double quadratic = process.residual.dot(process.weights);
    double most = kWild * kWild, times = 0;
    std::optional<std::pair<std::size_t, std::size_t>> worst;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (kernels[i].rows.empty()) continue;
      const auto e = static_cast<Eigen::Index>(i);
      const double error = process.left_out(e), certain = process.inverse(e, e);
      const double variance = std::max(kCalibrationScatter, 1 / certain - kernels[i].noise()) + usual;
      const double expected = variance * size_of_residuals(quadratic - error * error * certain, left - 1);
      for (std::size_t r = 0; r < kernels[i].rows.size(); ++r) {
        const double row = error + kernels[i].residual - process.residual(e) + kernels[i].rows[r].beyond;
        if (!(row * row > most * expected)) continue;
        most = row * row / expected, times = std::exp(row);
        worst = {i, r};
      }
    }
    if (!worst) break;
    Observation& kernel = kernels[worst->first];
    const auto e = static_cast<Eigen::Index>(worst->first);
    wild.emplace_back(kernel.rows[worst->second].line, times);
    const double noise = kernel.noise();
    kernel.rows.erase(kernel.rows.begin() + static_cast<std::ptrdiff_t>(worst->second));
    // The inverse when the kernel has another noise, or an infinite one (Sherman and Morrison 1950).
    const Eigen::VectorXd column = process.inverse.col(e);
    if (kernel.rows.empty()) {
      process.inverse -= column * column.transpose() / column(e);
      process.residual(e) = 0;
      --left;
    } else {
      kernel.center();
      const double change = kernel.noise() - noise;
      process.inverse -= column * column.transpose() * (change / (1 + change * column(e)));
      process.residual(e) = std::clamp(kernel.residual, -kMostCorrected, kMostCorrected);
    }
    process.weights = process.inverse * process.residual;
  }
  std::erase_if(kernels, [](const Observation& kernel) { return kernel.rows.empty(); });
  std::sort(wild.begin(), wild.end());
  return wild;
}

// The 90 % interval of ln(measured / corrected forecast): of kernels left out, each with its weight, and of one more
// that is asked for, which counts as much as any (split conformal prediction, outwards on both sides). Few kernels
// widen it.
std::pair<double, double> interval_of(std::vector<std::pair<double, double>> errors) {
  double sum = 0, squares = 0, most = 0;
  for (const auto& [error, weight] : errors) {
    sum += weight, squares += weight * weight;
    most = std::max(most, weight);
  }
  sum += most, squares += most * most;
  std::sort(errors.begin(), errors.end());
  const auto outermost = [&](auto begin, auto end) {
    double outside = 0, found = begin->first;
    for (auto i = begin; i != end && (outside += i->second) <= 0.05 * sum; ++i) found = i->first;
    return found;
  };
  const double widen = 1 + 2 * squares / (sum * sum);
  return {std::clamp(outermost(errors.begin(), errors.end()) * widen, -4.0, -0.01),
          std::clamp(outermost(errors.rbegin(), errors.rend()) * widen, 0.01, 4.0)};
}

FamilyCalibration fit(std::string family, DType dtype, const std::vector<Observation>& kernels) {
  const std::size_t count = kernels.size();
  const Process process = process_of(kernels);
  FamilyCalibration out;
  out.family = std::move(family), out.dtype = dtype;
  constexpr double kLeast = 0.5;  // kernels unlike all of them may differ all the same
  out.amplitude = std::clamp(std::sqrt(size_of_residuals(process.residual.dot(process.weights), count)), kLeast, 1.0);
  std::vector<std::pair<double, double>> errors;  // of each row, by the other kernels; and its weight
  for (std::size_t i = 0; i < count; ++i) {
    const Observation& kernel = kernels[i];
    const auto e = static_cast<Eigen::Index>(i);
    const double told = process.residual(e) - process.left_out(e);  // by the others
    const double weight = 1 / static_cast<double>(kernel.rows.size());
    const double corrected = std::max(std::clamp(told, -kMostCorrected, kMostCorrected), kernel.floor);
    double furthest = 0;
    for (const MeasuredRow& row : kernel.rows) {
      const double measured = kernel.residual + row.beyond;
      errors.emplace_back(measured - told, weight);  // what no correction takes away, too
      if (std::abs(measured - told) > std::abs(furthest)) furthest = measured - told;
      out.before += std::abs(std::exp(-measured) - 1);
      out.after += std::abs(std::exp(corrected - measured) - 1);
    }
    out.points.push_back(
        {kernel.x.duration, kernel.x.ridge, process.weights(e), furthest, kernel.x.kernel, kernel.x.kind});
  }
  out.before /= static_cast<double>(errors.size()), out.after /= static_cast<double>(errors.size());
  out.before = std::min(out.before, kLargestError), out.after = std::min(out.after, kLargestError);
  for (std::size_t i = 0; i < count; ++i) {
    out.deviation +=
        deviation_at(out.points, kernels[i].x, covariances(out.points, kernels[i].x), i) / static_cast<double>(count);
  }
  std::tie(out.low, out.high) = interval_of(std::move(errors));
  return out;
}

// Of a kernel at `x`: those of a like duration and ridge count most (localized conformal prediction; Guan 2023,
// Biometrika 110). Short kernels are forecast worse than long ones.
std::pair<double, double> interval_at(const std::vector<FamilyCalibration::Point>& points, const CalibrationPlace& x) {
  std::vector<std::pair<double, double>> errors;
  errors.reserve(points.size());
  constexpr double kFarthest = 1e-6;  // where none is near, all count alike
  for (const FamilyCalibration::Point& point : points) errors.emplace_back(point.error, nearness(x, point) + kFarthest);
  return interval_of(std::move(errors));
}

// Whether its rows are noise: they contradict each other, and are no nearer to what the others say than to the
// forecast.
bool is_noise(const FamilyCalibration& family) {
  // Of a GPU of which nothing is known, the interval is narrower.
  constexpr double kNoise = 1;  // a logarithm: 2.7 times as long at one end as at the other
  return family.after > family.before && family.high - family.low > kNoise;
}

Error wrong(const std::string& where, std::string message, std::string expected) {
  return {ErrorCode::kInvalidInput, std::move(message), where, std::move(expected)};
}

// Error: the middle one of the rows is further off than a correction goes, as in another unit.
Result<void> check_unit(const std::string& where, std::string_view family, DType dtype, std::vector<Observation> rows) {
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::nth_element(rows.begin(), middle, rows.end(), [](const Observation& a, const Observation& b) {
    return std::abs(a.residual) < std::abs(b.residual);
  });
  if (std::abs(middle->residual) <= kMostCorrected) return {};
  return fail(wrong(where,
                    fmt::format("the middle row of {} {} takes {:.4g} times as long as forecast", family,
                                name_of(dtype), std::exp(middle->residual)),
                    "latency_ms, in milliseconds, measured on this GPU"));
}

}  // namespace

std::string kind_of_kernel(std::string_view kernel) {
  std::string kind;
  for_each_member(kernel, [&](std::string_view name, std::string_view word) {
    if (std::find(kKindMembers.begin(), kKindMembers.end(), name) == kKindMembers.end()) return;
    if (!kind.empty()) kind += ' ';
    kind += name == "window" ? name : word;  // how wide it is, is a size
  });
  return kind;
}

double calibration_covariance(const CalibrationPlace& a, const CalibrationPlace& b) { return covariance(a, b); }

CalibrationChoice calibration_for(const KernelCalibration& calibration, const Operator& op) {
  constexpr double kBorrowed = 1.5;  // times as wide: another family's; as much again: another format's
  const std::string_view family = family_of(op);
  const auto half = [](DType dtype) { return dtype == DType::kBf16 || dtype == DType::kFp16; };
  const bool on_units = on_matrix_units(op);
  CalibrationChoice best;
  int best_rank = 5;
  for (const FamilyCalibration& f : calibration.families) {
    const bool same = f.dtype == op.dtype, alike = same || (half(f.dtype) && half(op.dtype));
    int rank = 5;
    if (f.family == family && alike) {
      rank = same ? 0 : 1;
    } else if (f.family == "gemm" && on_units && (f.dtype == DType::kFp32) == (op.dtype == DType::kFp32)) {
      rank = same ? 2 : alike ? 3 : 4;
    }
    if (rank >= best_rank) continue;
    best = {&f, rank < 2 ? 1 : rank < 4 ? kBorrowed : kBorrowed * kBorrowed};
    best_rank = rank;
  }
  return best;
}

const FamilyCalibration* measurements_for(const KernelCalibration& calibration, const Operator& op) {
  return calibration_for(calibration, op).family;
}

CalibrationPlace calibration_place(const Operator& op, double seconds, double compute, double memory) {
  std::string kernel = to_spec(op), kind = kind_of_kernel(kernel);
  return {std::log(seconds / 100e-6), compute > 0 && memory > 0 ? std::log(compute / memory) : 0, std::move(kernel),
          std::move(kind)};
}

CalibrationAt calibration_at(const FamilyCalibration& family, const CalibrationPlace& x) {
  constexpr double kNinety = 1.645;  // standard deviations: 90 % of a normal distribution lie within
  const std::vector<double> of_x = covariances(family.points, x);
  double sum = 0;
  for (std::size_t i = 0; i < of_x.size(); ++i) sum += family.points[i].weight * of_x[i];
  CalibrationAt found{std::clamp(sum, -kMostCorrected, kMostCorrected), family.low, family.high};
  if (!(family.deviation > 0)) return found;
  const double deviation = deviation_at(family.points, x, of_x);
  const auto [low, high] = interval_at(family.points, x);
  const double known = std::min(1.0, deviation / family.deviation);
  found.low = low * known, found.high = high * known;
  found.doubt = kNinety * family.amplitude *
                std::sqrt(std::max(0.0, deviation * deviation - family.deviation * family.deviation));
  return found;
}

namespace {

// The kernels of a family that are used, and what the user should know of the others; none: too few for a correction.
std::vector<Observation> used_of(const std::string& where, std::string_view family, DType dtype,
                                 std::vector<Observation> all, std::vector<std::string>& notes) {
  const std::string name = fmt::format("{} {}", family, name_of(dtype));
  const auto too_few = [&](const std::vector<Observation>& kernels) {
    if (kernels.size() >= kFewestRows) return false;
    notes.push_back(fmt::format("{}: {}, and a correction needs {}: left out", name, counted(kernels.size(), "kernel"),
                                kFewestRows));
    return true;
  };
  if (too_few(all)) return {};
  if (all.size() > FamilyCalibration::kMostPoints)
    notes.push_back(fmt::format("{}: {} of {} kernels are used", name, FamilyCalibration::kMostPoints, all.size()));
  std::vector<Observation> kernels = as_many_as_needed(std::move(all));
  const auto wild = take_out_wild(kernels);
  constexpr std::size_t kShown = 20;
  for (std::size_t i = 0; i < std::min(wild.size(), kShown); ++i) {
    notes.push_back(
        fmt::format("{}:{}: left out, because it takes {:.3g} times as long as the other rows of {} suggest", where,
                    wild[i].first, wild[i].second, name));
  }
  if (wild.size() > kShown) notes.push_back(fmt::format("{}: {} such rows are left out", name, wild.size()));
  if (too_few(kernels)) return {};
  const auto most = std::max_element(kernels.begin(), kernels.end(), [](const Observation& a, const Observation& b) {
    return a.scatter() < b.scatter();
  });
  constexpr double kContradicts = 0.1;  // standard deviation of a logarithm
  if (std::sqrt(most->scatter()) > kContradicts)
    notes.push_back(fmt::format("{}: rows of one kernel contradict each other by {:.0f} % ({})", name,
                                100 * std::sqrt(most->scatter()), most->x.kernel));
  const auto far = std::max_element(kernels.begin(), kernels.end(), [](const Observation& a, const Observation& b) {
    return std::abs(a.residual) < std::abs(b.residual);
  });
  if (std::abs(far->residual) > kMostCorrected)
    notes.push_back(fmt::format("{}: {} takes {:.3g} times as long as forecast, more than a correction goes", name,
                                far->x.kernel, std::exp(far->residual)));
  return kernels;
}

}  // namespace

Result<KernelCalibration> calibrate_kernels(const Gpu& gpu, const CsvTable& table, const ComputeModelOptions& options,
                                            std::vector<std::string>* notes) {
  ComputeModelOptions plain = options;
  plain.calibration.reset();
  NS_TRY(const auto model, make_compute_model(gpu, plain));
  const KernelReader reader(table, gpu.id);
  std::map<std::pair<std::string, DType>, std::vector<Observation>> families;
  std::map<std::pair<std::string, DType>, Error> too_fast;  // the first row of each
  std::string other;                                        // a GPU that rows name
  LeftOutRows left_out;
  std::size_t above_peak = 0;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    NS_TRY(const KernelRow row, reader.row(i));
    const std::string where = fmt::format("{}:{}", table.where(), table.line(i));
    if (!row.mode.empty() && row.mode != name_of(options.mode)) {
      Error error = wrong(where, fmt::format("the row was measured in mode {}", shortened(row.mode)),
                          fmt::format("rows of mode {}", name_of(options.mode)));
      error.hint = "calibrate in the mode of the rows (--mode), and measure for simulate in mode sustained";
      return fail(std::move(error));
    }
    if (!gpu.is_called(row.gpu)) {
      if (other.empty()) other = shortened(row.gpu);
      left_out.add(fmt::format("of {}, not of {}", shortened(row.gpu), gpu.id), where);
      continue;
    }
    if (row.doubtful) continue;
    if (!row.latency_ms) {
      left_out.add(std::string(kWithoutTime), where);
      continue;
    }
    const double latency_ms = *row.latency_ms;
    auto forecast = model->forecast(row.work);
    if (!forecast) {
      forecast.error().where = where;
      return fail(forecast.error());
    }
    const double seconds = forecast->latency / units::s;
    const auto [compute, memory] = pipe_seconds(gpu, row.work);
    const std::pair family{std::string(family_of(row.work)), row.work.dtype};
    const double least = compute / fewer_multiplications(row.work);
    if (latency_ms * 1e-3 < least) ++above_peak;
    if (latency_ms * 1e-3 < kFastest * least) {
      too_fast.try_emplace(
          family, wrong(where,
                        fmt::format("{:.4g} ms is shorter than {:.4g} ms, which it takes at the peak rate of {}",
                                    latency_ms, least * 1e3, gpu.id),
                        "latency_ms, in milliseconds, of the whole kernel in this number format"));
    }
    families[family].push_back({calibration_place(row.work, seconds, compute, memory),
                                std::log(latency_ms * 1e-3 / seconds),
                                std::log(forecast->floor / forecast->latency),
                                {{table.line(i)}}});
  }
  std::vector<std::string> found = left_out.notes();
  if (above_peak > 0) {
    found.push_back(fmt::format(
        "{} row{} faster than the peak rate of {}, which no forecast is: is the peak of the GPU's file right?",
        above_peak, above_peak == 1 ? " is" : "s are", gpu.id));
  }
  KernelCalibration calibration{gpu.id, options.mode, {}, board_text(gpu)};
  bool found_noise = false;
  for (const auto& [key, rows] : families) {
    std::vector<Observation> kernels = by_kernel(rows);
    if (kernels.size() >= kFewestRows) {
      NS_TRY_VOID(check_unit(table.where(), key.first, key.second, kernels));
      if (const auto row = too_fast.find(key); row != too_fast.end()) return fail(row->second);
    }
    kernels = used_of(table.where(), key.first, key.second, std::move(kernels), found);
    if (kernels.empty()) continue;
    FamilyCalibration family = fit(key.first, key.second, kernels);
    if (!is_noise(family)) {
      calibration.families.push_back(std::move(family));
      continue;
    }
    found_noise = true;
    found.push_back(
        fmt::format("{} {}: no correction, because kernels are forecast worse by what was measured of the others "
                    "({:.0f} % off instead of {:.0f} %): measure these rows again, with nothing else on the GPU",
                    key.first, name_of(key.second), 100 * family.after, 100 * family.before));
  }
  if (calibration.families.empty()) {
    const bool elsewhere = families.empty() && !other.empty();
    Error error =
        wrong(table.where(),
              fmt::format("{} of {}{}", found_noise ? "no usable measurements" : "too few measurements", gpu.id,
                          elsewhere ? fmt::format("; the rows are of {}", other) : ""),
              fmt::format("at least {} kernels of one operator family and number format; a few dozen are better",
                          kFewestRows));
    if (!elsewhere) error.hint = fmt::format("{}", fmt::join(found, "; "));
    return fail(std::move(error));
  }
  if (notes != nullptr) *notes = std::move(found);
  return calibration;
}

double fewer_multiplications(const Operator& op) {
  const auto* convolution = std::get_if<Convolution>(&op.kind);
  return convolution != nullptr && convolution->kernel == 3 && convolution->stride == 1 ? 2.25 : 1;
}

std::pair<double, double> pipe_seconds(const Gpu& gpu, const Operator& op) {
  const Work work = work_of(op);
  const FlopsPerSecond peak = max(gpu.matrix_peak(op.dtype), gpu.vector[DType::kFp32]);
  return {peak > FlopsPerSecond() ? work.flops / peak / units::s : 0,
          gpu.memory_bandwidth > BytesPerSecond() ? (work.read + work.written) / gpu.memory_bandwidth / units::s : 0};
}

std::string board_text(const Gpu& gpu) {
  return fmt::format("{} SMs at {:.0f} MHz, {:.0f} W, {:.0f} GB/s", gpu.sm_count, gpu.boost_clock / units::MHz,
                     gpu.board_power / units::W, gpu.memory_bandwidth / (units::GB / units::s));
}

std::string to_json(const KernelCalibration& calibration) {
  Json json;
  json["schema"] = kSchema, json["gpu"] = calibration.gpu;
  json["machine"] = calibration.machine;
  json["mode"] = name_of(calibration.mode);
  json["families"] = Json::array();
  for (const FamilyCalibration& f : calibration.families) {
    Json points = Json::array(), kernels = Json::array();
    for (const FamilyCalibration::Point& point : f.points) {
      points.push_back(Json::array({point.duration, point.ridge, point.weight, point.error}));
      kernels.push_back(point.kernel);
    }
    json["families"].push_back({{"family", f.family},
                                {"dtype", name_of(f.dtype)},
                                {"low", f.low},
                                {"high", f.high},
                                {"deviation", f.deviation},
                                {"amplitude", f.amplitude},
                                {"mean_error_before", f.before},
                                {"mean_error_after", f.after},
                                {"points", std::move(points)},
                                {"kernels", std::move(kernels)}});
  }
  return json.dump() + "\n";
}

Result<KernelCalibration> read_kernel_calibration(std::string_view text, const std::string& where) {
  constexpr double kLargestLog = 5, kLargestInput = 1e6;
  NS_TRY(const Json root, parse_json(text, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  reader.schema(kSchema);
  if (!errors.empty()) {
    errors.back().hint = "make it anew from its measurements: ns-dist calibrate --kernels";
    return fail(join(std::move(errors)));
  }
  KernelCalibration calibration;
  calibration.gpu = reader.text("gpu");
  calibration.machine = reader.text("machine");
  calibration.mode = reader.enumerator<Mode>("mode");
  std::vector<std::string_view> names;
  for (const OperatorForm& known : operator_forms()) names.push_back(known.family);
  reader.objects("families", [&](JsonReader& entry) {
    FamilyCalibration& family = calibration.families.emplace_back();
    family.family = names[entry.choice("family", names)];
    family.dtype = entry.enumerator<DType>("dtype");
    family.low = entry.number("low", -kLargestLog, 0);
    family.high = entry.number("high", 0, kLargestLog);
    family.deviation = entry.number("deviation", 0, kLargestLog);
    family.amplitude = entry.number("amplitude", 0, 1);
    family.before = entry.number("mean_error_before", 0, kLargestError);
    family.after = entry.number("mean_error_after", 0, kLargestError);
    for (const std::vector<double>& point : entry.number_rows("points", 4, -kLargestInput, kLargestInput)) {
      if (point.size() == 4) family.points.push_back({point[0], point[1], point[2], point[3]});
    }
    const std::vector<std::string> kernels = entry.texts("kernels");
    if (kernels.size() != family.points.size()) {
      entry.note("kernels", fmt::format("{} kernels", kernels.size()),
                 fmt::format("one for each of {} measurements", family.points.size()));
    }
    for (std::size_t i = 0; i < std::min(kernels.size(), family.points.size()); ++i) {
      family.points[i].kernel = kernels[i];
      family.points[i].kind = kind_of_kernel(kernels[i]);
    }
    if (family.points.empty() || family.points.size() > FamilyCalibration::kMostPoints) {
      entry.note("points", fmt::format("{} measurements", family.points.size()),
                 fmt::format("1 to {} of [duration, ridge, weight]", FamilyCalibration::kMostPoints));
    }
  });
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return calibration;
}

}  // namespace ns_dist
