#include "ns_dist/kernel_calibration.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "calibration.h"

namespace ns_dist {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "ns-dist/kernel-calibration/1";
constexpr std::size_t kFewest = 3;  // rows of a family

struct Observation {
  std::array<double, 2> x{};
  double residual = 0;  // ln(measured / forecast)
};

// Forecasts of unmeasured GPUs are off by some 15 % in general and by some 20 % more in a region of a factor e of
// duration or ridge; single kernels scatter by some 8 %.
constexpr double kCommon = 0.15 * 0.15, kLocal = 0.2 * 0.2, kScatter = 0.08 * 0.08, kReach = 1.0;

double covariance(const std::array<double, 2>& a, const std::array<double, 2>& b) {
  const double d0 = a[0] - b[0], d1 = a[1] - b[1];
  return kCommon + kLocal * std::exp(-(d0 * d0 + d1 * d1) / (2 * kReach * kReach));
}

FamilyCalibration fit(std::string family, DType dtype, const std::vector<Observation>& all) {
  // Evenly over the rows where there are more than are needed.
  std::vector<Observation> rows;
  const std::size_t count = std::min(all.size(), FamilyCalibration::kMostPoints);
  for (std::size_t i = 0; i < count; ++i) rows.push_back(all[i * all.size() / count]);

  const auto n = static_cast<Eigen::Index>(count);
  Eigen::MatrixXd k(n, n);
  Eigen::VectorXd residual(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    for (Eigen::Index j = 0; j < n; ++j) {
      k(i, j) = covariance(rows[static_cast<std::size_t>(i)].x, rows[static_cast<std::size_t>(j)].x);
    }
    k(i, i) += kScatter;
    residual(i) = std::clamp(rows[static_cast<std::size_t>(i)].residual, -2.0, 2.0);
  }
  const Eigen::MatrixXd inverse = k.ldlt().solve(Eigen::MatrixXd::Identity(n, n));
  const Eigen::VectorXd weights = inverse * residual;

  FamilyCalibration out;
  out.family = std::move(family), out.dtype = dtype;
  std::vector<double> errors;  // of each row, by the others
  for (Eigen::Index i = 0; i < n; ++i) {
    const Observation& row = rows[static_cast<std::size_t>(i)];
    out.points.push_back({row.x[0], row.x[1], weights(i)});
    errors.push_back(weights(i) / inverse(i, i));
    out.before += std::abs(std::exp(-residual(i)) - 1) / static_cast<double>(count);
    out.after += std::abs(std::exp(-errors.back()) - 1) / static_cast<double>(count);
  }
  std::sort(errors.begin(), errors.end());
  const double number = static_cast<double>(count), widen = 1 + 2 / number;  // few rows widen the interval
  // Split conformal prediction, outwards on both sides.
  const auto at = [&](double rank) { return errors[static_cast<std::size_t>(std::clamp(rank - 1, 0.0, number - 1))]; };
  out.low = std::clamp(at(std::floor((number + 1) * 0.05)) * widen, -4.0, -0.01);
  out.high = std::clamp(at(std::ceil((number + 1) * 0.95)) * widen, 0.01, 4.0);
  return out;
}

Error wrong(const std::string& where, std::string message, std::string expected) {
  return {ErrorCode::kInvalidInput, std::move(message), where, std::move(expected), "", {}};
}

}  // namespace

std::array<double, 2> calibration_inputs(double seconds, double compute, double memory) {
  return {std::log(seconds / 100e-6), compute > 0 && memory > 0 ? std::log(compute / memory) : 0};
}

double correction_at(const FamilyCalibration& family, const std::array<double, 2>& x) {
  double sum = 0;
  for (const FamilyCalibration::Point& point : family.points) {
    sum += point.weight * covariance({point.duration, point.ridge}, x);
  }
  return std::clamp(sum, -2.0, 2.0);
}

Result<KernelCalibration> calibrate_kernels(const Gpu& gpu, const CsvTable& table, const ComputeModelOptions& options) {
  ComputeModelOptions plain = options;
  plain.calibration.reset();
  NS_TRY(const auto model, make_compute_model(gpu, plain));
  const KernelReader reader(table, gpu.id);
  std::map<std::pair<std::string, DType>, std::vector<Observation>> families;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    NS_TRY(const KernelRow row, reader.row(i));
    if (row.gpu != gpu.id && std::find(gpu.aliases.begin(), gpu.aliases.end(), row.gpu) == gpu.aliases.end()) continue;
    if (row.doubtful) continue;
    const std::string where = fmt::format("{}:{}", table.where(), table.line(i));
    if (!row.latency_ms || !(*row.latency_ms > 0)) {
      return fail(wrong(where, "a row without a latency", "latency_ms, in milliseconds, above zero"));
    }
    auto forecast = model->forecast(row.work);
    if (!forecast) {
      forecast.error().where = where;
      return fail(forecast.error());
    }
    const double seconds = forecast->latency / units::s;
    const auto [compute, memory] = pipe_seconds(gpu, row.work);
    families[{std::string(family_of(row.work)), row.work.dtype}].push_back(
        {calibration_inputs(seconds, compute, memory), std::log(*row.latency_ms * 1e-3 / seconds)});
  }
  KernelCalibration calibration{gpu.id, options.mode, {}};
  for (const auto& [key, rows] : families) {
    if (rows.size() >= kFewest) calibration.families.push_back(fit(key.first, key.second, rows));
  }
  if (calibration.families.empty()) {
    return fail(wrong(
        table.where(), fmt::format("too few measurements of {}", gpu.id),
        fmt::format("at least {} rows of one operator family and number format; a few dozen are better", kFewest)));
  }
  return calibration;
}

std::pair<double, double> pipe_seconds(const Gpu& gpu, const Operator& op) {
  const Work work = work_of(op);
  const FlopsPerSecond peak = max(gpu.matrix_peak(op.dtype), gpu.vector[DType::kFp32]);
  return {peak > FlopsPerSecond() ? work.flops / peak / units::s : 0,
          gpu.memory_bandwidth > BytesPerSecond() ? (work.read + work.written) / gpu.memory_bandwidth / units::s : 0};
}

std::string to_json(const KernelCalibration& calibration) {
  Json json;
  json["schema"] = kSchema, json["gpu"] = calibration.gpu, json["mode"] = name_of(calibration.mode);
  json["families"] = Json::array();
  for (const FamilyCalibration& f : calibration.families) {
    Json points = Json::array();
    for (const FamilyCalibration::Point& point : f.points) {
      points.push_back(Json::array({point.duration, point.ridge, point.weight}));
    }
    json["families"].push_back({{"family", f.family},
                                {"dtype", name_of(f.dtype)},
                                {"low", f.low},
                                {"high", f.high},
                                {"mean_error_before", f.before},
                                {"mean_error_after", f.after},
                                {"points", std::move(points)}});
  }
  return json.dump() + "\n";
}

Result<KernelCalibration> read_kernel_calibration(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  const std::string again = "an object as ns-dist calibrate writes it";
  if (json.is_discarded() || !json.is_object()) return fail(wrong(where, "not a JSON object", again));
  const auto only = [&](const Json& object, std::initializer_list<std::string_view> keys,
                        const std::string& place) -> Result<void> {
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        return fail(wrong(place + "/" + key, "an unknown key", fmt::format("one of {}", fmt::join(keys, ", "))));
      }
    }
    for (const std::string_view key : keys) {
      if (!object.contains(key)) return fail(wrong(place, fmt::format("no \"{}\"", key), again));
    }
    return {};
  };
  NS_TRY_VOID(only(json, {"schema", "gpu", "mode", "families"}, where + "#"));
  if (json["schema"] != kSchema) return fail(wrong(where + "#/schema", "another schema", std::string(kSchema)));
  if (!json["gpu"].is_string()) return fail(wrong(where + "#/gpu", "no text", "the id of a GPU"));
  const auto mode = json["mode"].is_string() ? mode_from_name(json["mode"].get<std::string>()) : std::nullopt;
  if (!mode) return fail(wrong(where + "#/mode", "no mode", "burst or sustained"));
  if (!json["families"].is_array()) return fail(wrong(where + "#/families", "no list", "a list of families"));
  KernelCalibration calibration;
  calibration.gpu = json["gpu"].get<std::string>();
  calibration.mode = *mode;
  for (std::size_t i = 0; i < json["families"].size(); ++i) {
    const Json& entry = json["families"][i];
    const std::string place = fmt::format("{}#/families/{}", where, i);
    if (!entry.is_object()) return fail(wrong(place, "no object", again));
    NS_TRY_VOID(
        only(entry, {"family", "dtype", "low", "high", "mean_error_before", "mean_error_after", "points"}, place));
    FamilyCalibration family;
    if (!entry["family"].is_string() ||
        std::none_of(operator_families().begin(), operator_families().end(),
                     [&](const OperatorFamily& known) { return entry["family"] == known.name; })) {
      return fail(wrong(place + "/family", "no operator family", "a name of `ns-dist list operators`"));
    }
    family.family = entry["family"].get<std::string>();
    const auto dtype = entry["dtype"].is_string() ? dtype_from_name(entry["dtype"].get<std::string>()) : std::nullopt;
    if (!dtype) return fail(wrong(place + "/dtype", "no number format", "fp32, tf32, fp16, bf16, fp8, ..."));
    family.dtype = *dtype;
    struct Field {
      const char* key;
      double* value;
      double least, most;
    };
    for (const Field& field :
         {Field{"low", &family.low, -5, 0}, Field{"high", &family.high, 0, 5},
          Field{"mean_error_before", &family.before, 0, 1e9}, Field{"mean_error_after", &family.after, 0, 1e9}}) {
      const Json& value = entry[field.key];
      if (!value.is_number() || !(value.get<double>() >= field.least && value.get<double>() <= field.most)) {
        return fail(wrong(place + "/" + field.key, "no number in range",
                          fmt::format("from {} to {}", field.least, field.most)));
      }
      *field.value = value.get<double>();
    }
    const Json& points = entry["points"];
    if (!points.is_array() || points.empty() || points.size() > FamilyCalibration::kMostPoints) {
      return fail(wrong(place + "/points", "no list of measurements",
                        fmt::format("1 to {} of [duration, ridge, weight]", FamilyCalibration::kMostPoints)));
    }
    for (std::size_t n = 0; n < points.size(); ++n) {
      const Json& point = points[n];
      const auto number = [&](std::size_t at) {
        return point[at].is_number() && std::abs(point[at].get<double>()) <= 1e6;
      };
      if (!point.is_array() || point.size() != 3 || !number(0) || !number(1) || !number(2)) {
        return fail(wrong(fmt::format("{}/points/{}", place, n), "no measurement", "[duration, ridge, weight]"));
      }
      family.points.push_back({point[0].get<double>(), point[1].get<double>(), point[2].get<double>()});
    }
    calibration.families.push_back(std::move(family));
  }
  return calibration;
}

}  // namespace ns_dist
