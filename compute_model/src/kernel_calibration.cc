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
  std::array<double, 3> x{};
  double residual = 0;  // ln(measured / forecast)
};

// Ridge regression with a prior for each coefficient: forecasts of unmeasured GPUs are off by some 15 %, and by some 5
// % more with each e-fold of duration or ridge; single kernels scatter by some 8 %. Outliers count as one of twice
// that.
Eigen::Vector3d coefficients_of(const std::vector<Observation>& rows) {
  constexpr double kScatter = 0.08;
  const Eigen::Vector3d prior(0.15, 0.05, 0.05);
  Eigen::Vector3d solved = Eigen::Vector3d::Zero();
  for (int pass = 0; pass < 8; ++pass) {
    Eigen::Matrix3d left = (kScatter * kScatter * prior.array().square().inverse()).matrix().asDiagonal();
    Eigen::Vector3d right = Eigen::Vector3d::Zero();
    for (const Observation& row : rows) {
      const Eigen::Vector3d x(row.x[0], row.x[1], row.x[2]);
      const double error = std::abs(row.residual - x.dot(solved));
      const double weight = error > 2 * kScatter ? 2 * kScatter / error : 1;
      left += weight * x * x.transpose(), right += weight * row.residual * x;
    }
    solved = left.ldlt().solve(right);
  }
  return solved;
}

FamilyCalibration fit(std::string family, DType dtype, const std::vector<Observation>& rows) {
  FamilyCalibration out{std::move(family), dtype, rows.size()};
  const Eigen::Vector3d all = coefficients_of(rows);
  out.offset = all[0], out.by_duration = all[1], out.by_ridge = all[2];
  // Each row is judged by a fit without its tenth, so that the interval is honest; few rows widen it.
  std::vector<double> errors;
  const std::size_t folds = std::min<std::size_t>(10, rows.size());
  for (std::size_t fold = 0; fold < folds; ++fold) {
    std::vector<Observation> others;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i % folds != fold) others.push_back(rows[i]);
    }
    const Eigen::Vector3d blind = coefficients_of(others);
    for (std::size_t i = fold; i < rows.size(); i += folds) {
      errors.push_back(rows[i].residual - blind.dot(Eigen::Vector3d(rows[i].x[0], rows[i].x[1], rows[i].x[2])));
    }
  }
  std::sort(errors.begin(), errors.end());
  const double n = static_cast<double>(errors.size()), widen = 1 + 2 / n;
  const auto at = [&](double q) {
    return errors[static_cast<std::size_t>(std::clamp(std::ceil((n + 1) * q) - 1, 0.0, n - 1))];
  };
  out.low = std::clamp(at(0.05) * widen, -4.0, -0.01), out.high = std::clamp(at(0.95) * widen, 0.01, 4.0);
  return out;
}

Error wrong(const std::string& where, std::string message, std::string expected) {
  return {ErrorCode::kInvalidInput, std::move(message), where, std::move(expected), "", {}};
}

std::string_view text_of(Mode mode) { return mode == Mode::kBurst ? "burst" : "sustained"; }

}  // namespace

std::array<double, 3> calibration_inputs(double seconds, double compute, double memory) {
  return {1, std::clamp(std::log(seconds / 100e-6), -5.0, 5.0),
          compute > 0 && memory > 0 ? std::clamp(std::log(compute / memory), -4.0, 4.0) : 0};
}

Result<KernelCalibration> calibrate_kernels(const Gpu& gpu, const CsvTable& table, const ComputeModelOptions& options) {
  ComputeModelOptions plain = options;
  plain.calibration.reset();
  NS_TRY(const auto model, make_compute_model(gpu, plain));
  const KernelReader reader(table, gpu.id);
  std::map<std::pair<std::string, DType>, std::vector<Observation>> families;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    NS_TRY(const KernelRow row, reader.row(i));
    if (row.gpu != gpu.id) continue;
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
  json["schema"] = kSchema, json["gpu"] = calibration.gpu, json["mode"] = text_of(calibration.mode);
  json["families"] = Json::array();
  for (const FamilyCalibration& f : calibration.families) {
    json["families"].push_back({{"family", f.family},
                                {"dtype", name_of(f.dtype)},
                                {"rows", f.rows},
                                {"offset", f.offset},
                                {"by_duration", f.by_duration},
                                {"by_ridge", f.by_ridge},
                                {"low", f.low},
                                {"high", f.high}});
  }
  return json.dump(2) + "\n";
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
  if (json["mode"] != "burst" && json["mode"] != "sustained") {
    return fail(wrong(where + "#/mode", "no mode", "burst or sustained"));
  }
  if (!json["families"].is_array()) return fail(wrong(where + "#/families", "no list", "a list of families"));
  KernelCalibration calibration;
  calibration.gpu = json["gpu"].get<std::string>();
  calibration.mode = json["mode"] == "burst" ? Mode::kBurst : Mode::kSustained;
  for (std::size_t i = 0; i < json["families"].size(); ++i) {
    const Json& entry = json["families"][i];
    const std::string place = fmt::format("{}#/families/{}", where, i);
    if (!entry.is_object()) return fail(wrong(place, "no object", again));
    NS_TRY_VOID(only(entry, {"family", "dtype", "rows", "offset", "by_duration", "by_ridge", "low", "high"}, place));
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
    if (!entry["rows"].is_number_unsigned()) return fail(wrong(place + "/rows", "no count", "a whole number"));
    family.rows = entry["rows"].get<std::size_t>();
    struct Field {
      const char* key;
      double* value;
      double least, most;
    };
    for (const Field& field : {Field{"offset", &family.offset, -4, 4}, Field{"by_duration", &family.by_duration, -1, 1},
                               Field{"by_ridge", &family.by_ridge, -1, 1}, Field{"low", &family.low, -5, 0},
                               Field{"high", &family.high, 0, 5}}) {
      const Json& value = entry[field.key];
      if (!value.is_number() || !(value.get<double>() >= field.least && value.get<double>() <= field.most)) {
        return fail(wrong(place + "/" + field.key, "no number in range",
                          fmt::format("a logarithm from {} to {}", field.least, field.most)));
      }
      *field.value = value.get<double>();
    }
    calibration.families.push_back(std::move(family));
  }
  return calibration;
}

}  // namespace ns_dist
