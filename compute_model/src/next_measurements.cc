#include "ns_dist/next_measurements.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <string>
#include <utility>

#include "calibration.h"
#include "ns_dist/kernel_table.h"
#include "ns_dist/operator_text.h"

namespace ns_dist {
namespace {

struct Kernel {
  Operator work;
  double share = 0;
  CalibrationPlace x = {};
  double now = 0, variance = 0;  // of ln(measured / forecast), now and then, beyond the scatter of single kernels
};

// Of |ln(measured / forecast)|, which is normally distributed around zero.
double expected_error(double variance) { return std::sqrt(2 / std::numbers::pi * (variance + kCalibrationScatter)); }

// A kernel is not measured where little but its own 7 % is unknown.
constexpr double kTold = 0.09 * 0.09;

std::vector<CalibrationPlace> places_of(const FamilyCalibration* family) {
  std::vector<CalibrationPlace> places;
  if (family == nullptr) return places;
  for (const FamilyCalibration::Point& point : family->points) {
    places.push_back({point.duration, point.ridge, point.kernel, point.kind});
  }
  return places;
}

Eigen::MatrixXd covariances(const std::vector<CalibrationPlace>& a, const std::vector<CalibrationPlace>& b) {
  Eigen::MatrixXd all(static_cast<Eigen::Index>(a.size()), static_cast<Eigen::Index>(b.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      all(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) = calibration_covariance(a[i], b[j]);
    }
  }
  return all;
}

// Of the process at `x`, given measurements at `measured` (Rasmussen and Williams 2006, eq. 2.24).
Eigen::MatrixXd posterior(const std::vector<CalibrationPlace>& x, const std::vector<CalibrationPlace>& measured) {
  Eigen::MatrixXd prior = covariances(x, x);
  if (measured.empty()) return prior;
  Eigen::MatrixXd known = covariances(measured, measured);
  known.diagonal().array() += kCalibrationScatter;
  const Eigen::MatrixXd across = covariances(measured, x);
  return prior - across.transpose() * known.ldlt().solve(across);
}

// The kernels of one family and number format. Families are corrected independently of each other.
class Family {
 public:
  Family(std::vector<Kernel> kernels, const KernelCalibration& calibration) : kernels_(std::move(kernels)) {
    std::vector<CalibrationPlace> x;
    for (const Kernel& kernel : kernels_) x.push_back(kernel.x);
    const CalibrationChoice choice = calibration_for(calibration, kernels_.front().work);
    covariance_ = posterior(x, places_of(choice.own() ? choice.family : nullptr));
    is_corrected_ = choice.own() && choice.family != nullptr;
    const double borrowed = choice.wider * choice.wider;
    const Eigen::MatrixXd of_others = posterior(x, places_of(choice.family));
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const auto e = static_cast<Eigen::Index>(i);
      kernels_[i].now = covariance_(e, e);
      if (!choice.own()) {
        const double theirs = borrowed * (of_others(e, e) + kCalibrationScatter) - kCalibrationScatter;
        kernels_[i].now = std::min(kernels_[i].now, theirs);
      }
      kernels_[i].variance = kernels_[i].now;
    }
  }

  const std::vector<Kernel>& kernels() const { return kernels_; }
  double error() const {
    double sum = 0;
    for (const Kernel& kernel : kernels_) sum += kernel.share * expected_error(kernel.variance);
    return sum;
  }

  // What to measure next of it: one row, or as many as a correction needs.
  struct Choice {
    std::vector<std::size_t> rows;
    Eigen::MatrixXd covariance;
    double gain = 0;  // of the expected error, for each row
  };
  Choice choose() const {
    Choice choice{{}, covariance_, 0};
    const std::size_t count = is_corrected_ ? 1 : kFewestRows;
    if (kernels_.size() < count) return choice;
    while (choice.rows.size() < count) {
      std::optional<std::size_t> best;
      double least = 0;
      for (std::size_t i = 0; i < kernels_.size(); ++i) {
        const auto e = static_cast<Eigen::Index>(i);
        if (is_corrected_ && !(choice.covariance(e, e) > kTold)) continue;
        if (std::find(choice.rows.begin(), choice.rows.end(), i) != choice.rows.end()) continue;
        const double left = error_when(choice.covariance, e);
        if (best && !(left < least)) continue;
        best = i, least = left;
      }
      if (!best) return {};
      const auto e = static_cast<Eigen::Index>(*best);
      const Eigen::VectorXd column = choice.covariance.col(e);
      choice.covariance -= column * column.transpose() / (column(e) + kCalibrationScatter);
      choice.rows.push_back(*best);
      choice.gain = (error() - least) / static_cast<double>(count);
    }
    return choice;
  }
  void take(const Choice& choice) {
    covariance_ = choice.covariance;
    is_corrected_ = true;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      kernels_[i].variance = covariance_(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(i));
    }
  }

 private:
  // error(), once `row` is measured, too.
  double error_when(const Eigen::MatrixXd& covariance, Eigen::Index row) const {
    double sum = 0;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const auto e = static_cast<Eigen::Index>(i);
      const double told = covariance(e, row) * covariance(e, row) / (covariance(row, row) + kCalibrationScatter);
      sum += kernels_[i].share * expected_error(std::max(0.0, covariance(e, e) - told));
    }
    return sum;
  }

  std::vector<Kernel> kernels_;
  Eigen::MatrixXd covariance_;  // of what is measured of the family itself
  bool is_corrected_ = false;
};

// The operator as a row of a table describes it; nothing where only a name does.
Result<std::optional<Operator>> as_row(const Operator& op, const std::string& gpu) {
  if (std::holds_alternative<UnknownOperator>(op.kind)) return std::optional<Operator>();
  NS_TRY(const CsvTable table, CsvTable::parse(kernel_rows(gpu, std::span(&op, 1)), to_spec(op)));
  NS_TRY(const KernelRow row, KernelReader(table).row(0));
  return std::optional<Operator>(row.work);
}

}  // namespace

Result<MeasurementAdvice> next_measurements(const Gpu& gpu, const KernelCalibration& calibration,
                                            std::span<const std::vector<KernelUse>> steps, std::size_t most) {
  NS_TRY(const auto plain, make_compute_model(gpu, {.mode = calibration.mode}));
  NS_TRY(const auto corrected,
         make_compute_model(
             gpu, {.mode = calibration.mode, .calibration = std::make_shared<const KernelCalibration>(calibration)}));
  // Kernels by what describes them in a table, families by name and number format; both in the order of their texts.
  std::map<std::pair<std::string, DType>, std::map<std::string, Kernel>> found;
  const double count = static_cast<double>(std::count_if(steps.begin(), steps.end(), [](const auto& step) {
    return std::any_of(step.begin(), step.end(), [](const KernelUse& use) { return use.runs > 0; });
  }));
  for (const std::vector<KernelUse>& step : steps) {
    std::vector<std::pair<Kernel*, double>> seconds;
    double all = 0;
    for (const KernelUse& use : step) {
      NS_TRY(const std::optional<Operator> row, as_row(use.work, gpu.id));
      if (!row) continue;
      // What a row cannot say of a kernel, a measurement of the row says nothing about.
      NS_TRY(const Forecast whole, plain->forecast(use.work));
      NS_TRY(const Forecast told, plain->forecast(*row));
      if (std::abs(told.latency / whole.latency - 1) > 1e-9) continue;
      NS_TRY(const Forecast forecast, corrected->forecast(*row));
      const auto [place, is_new] =
          found[{std::string(family_of(*row)), row->dtype}].try_emplace(to_spec(*row), Kernel{*row});
      Kernel& kernel = place->second;
      if (is_new) {
        const auto [compute, memory] = pipe_seconds(gpu, *row);
        kernel.x = calibration_place(*row, told.latency / units::s, compute, memory);
      }
      seconds.emplace_back(&kernel, use.runs * (forecast.latency / units::s));
      all += seconds.back().second;
    }
    if (!(all > 0)) continue;
    for (const auto& [kernel, time] : seconds) kernel->share += time / all / count;
  }

  std::vector<Family> families;
  for (const auto& [key, by_text] : found) {
    std::vector<Kernel> kernels;
    for (const auto& [text, kernel] : by_text) kernels.push_back(kernel);
    // The longest ones describe a family well enough.
    std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
    if (kernels.size() > FamilyCalibration::kMostPoints) kernels.resize(FamilyCalibration::kMostPoints);
    families.emplace_back(std::move(kernels), calibration);
  }
  std::vector<Family::Choice> choices;
  MeasurementAdvice advice;
  for (const Family& family : families) {
    advice.error += family.error();
    choices.push_back(family.choose());
  }
  double left = advice.error;
  while (true) {
    std::optional<std::size_t> best;
    for (std::size_t f = 0; f < families.size(); ++f) {
      if (!(choices[f].gain > 0) || advice.rows.size() + choices[f].rows.size() > most) continue;
      if (!best || choices[f].gain > choices[*best].gain) best = f;
    }
    if (!best) return advice;
    for (const std::size_t row : choices[*best].rows) {
      const Kernel& kernel = families[*best].kernels()[row];
      left -= choices[*best].gain;
      advice.rows.push_back({kernel.work, kernel.share, expected_error(kernel.now), left});
    }
    families[*best].take(choices[*best]);
    choices[*best] = families[*best].choose();
  }
}

}  // namespace ns_dist
