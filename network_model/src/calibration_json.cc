// Reader and writer of network calibrations.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "correction.h"
#include "embedded_calibrations.h"
#include "ns_dist/network_fit.h"

namespace ns_dist {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "ns-dist/network-calibration/1";

std::optional<CollectiveKind> kind_named(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(CollectiveKind::kSendRecv); ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (name_of(kind) == name) return kind;
  }
  return std::nullopt;
}

tl::unexpected<Error> wrong(const std::string& where, const std::string& message, const std::string& expected) {
  return fail({ErrorCode::kInvalidInput, message, where, expected, "", {}});
}

Result<CalibrationCurve> read_curve(const Json& json, const std::string& where) {
  constexpr std::array<std::string_view, 13> kKeys = {
      "cluster",   "gpu",     "fabric",    "architecture", "collective", "ranks",          "ranks_per_node",
      "in_switch", "integer", "log_ratio", "steps",        "deviation",  "deviation_short"};
  if (!json.is_object()) return wrong(where, "not an object", "a curve");
  for (const auto& [key, value] : json.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      return wrong(where + "/" + key, fmt::format("unknown key \"{}\"", key),
                   fmt::format("{}", fmt::join(kKeys, ", ")));
    }
  }
  const auto text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  for (const char* key : {"fabric", "collective"}) {
    if (!text(key)) return wrong(where + "/" + key, "no text", "a name");
  }
  CalibrationCurve curve;
  for (const char* key : {"cluster", "gpu", "architecture"}) {
    if (json.contains(key) && !json[key].is_string()) return wrong(where + "/" + key, "not a text", "an id");
  }
  curve.cluster = json.value("cluster", "");
  curve.gpu = json.value("gpu", "");
  curve.architecture = json.value("architecture", "");
  curve.fabric = json["fabric"].get<std::string>();
  const std::optional<CollectiveKind> kind = kind_named(json["collective"].get<std::string>());
  if (!kind) return wrong(where + "/collective", "unknown collective " + json["collective"].dump(), "all_reduce, ...");
  curve.kind = *kind;
  for (const auto& [key, target] :
       {std::pair("ranks", &curve.ranks), std::pair("ranks_per_node", &curve.ranks_per_node)}) {
    if (!json.contains(key) || !json[key].is_number_integer() || json[key].get<std::int64_t>() < 1) {
      return wrong(where + "/" + key, "not a count", "a positive integer");
    }
    *target = json[key].get<std::int64_t>();
  }
  for (const auto& [key, target] : {std::pair("in_switch", &curve.in_switch), std::pair("integer", &curve.integer)}) {
    if (!json.contains(key)) continue;
    if (!json[key].is_boolean()) return wrong(where + "/" + key, "not a truth value", "true or false");
    *target = json[key].get<bool>();
  }
  if (json.contains("steps")) {
    if (!json["steps"].is_array()) return wrong(where + "/steps", "not a list", "[[microseconds, height], ...]");
    for (const Json& step : json["steps"]) {
      const bool pair = step.is_array() && step.size() == 2 && step[0].is_number() && step[1].is_number() &&
                        step[0].get<double>() > 0 && step[0].get<double>() < 1e12 && step[1].get<double>() > 0 &&
                        step[1].get<double>() < 10;
      if (!pair) return wrong(where + "/steps", "an impossible step " + step.dump(), "[microseconds, height]");
      curve.steps.push_back({step[0].get<double>() * units::us, step[1].get<double>()});
    }
  }
  const bool complete = json.contains("log_ratio") && json["log_ratio"].is_array() &&
                        json["log_ratio"].size() == network::kKnots && json.contains("deviation") &&
                        json["deviation"].is_number();
  if (!complete) {
    return wrong(where + "/log_ratio", "no complete curve",
                 fmt::format("{} numbers, and a deviation beside them", network::kKnots));
  }
  curve.deviation = json["deviation"].get<double>();
  // Files of earlier versions have one for all sizes.
  if (json.contains("deviation_short") && !json["deviation_short"].is_number()) {
    return wrong(where + "/deviation_short", "no number", "0 to 10");
  }
  curve.deviation_short = json.value("deviation_short", curve.deviation);
  for (const Json& value : json["log_ratio"]) {
    constexpr double kLargest = 12;  // e^12: a hundred thousand times off is no measurement
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= kLargest)) {
      return wrong(where + "/log_ratio", "an impossible value " + value.dump(), "a logarithm of a ratio");
    }
    curve.log_ratio.push_back(value.get<double>());
  }
  if (!(curve.deviation >= 0 && curve.deviation < 10)) return wrong(where + "/deviation", "impossible", "0 to 10");
  if (!(curve.deviation_short >= 0 && curve.deviation_short < 10)) {
    return wrong(where + "/deviation_short", "impossible", "0 to 10");
  }
  return curve;
}

}  // namespace

// One curve a line, four decimals: 0.01 % of time.
std::string to_json(const NetworkCalibration& calibration) {
  std::string text = fmt::format("{{\n  \"schema\": \"{}\",\n  \"source\": {},\n  \"curves\": [", kSchema,
                                 Json(calibration.source).dump());
  const char* separator = "\n";
  for (const CalibrationCurve& curve : calibration.curves) {
    text += separator;
    text += "    {";
    if (!curve.cluster.empty()) text += fmt::format("\"cluster\": {}, ", Json(curve.cluster).dump());
    if (!curve.gpu.empty()) text += fmt::format("\"gpu\": {}, ", Json(curve.gpu).dump());
    text += fmt::format("\"fabric\": {}, \"architecture\": {}, ", Json(curve.fabric).dump(),
                        Json(curve.architecture).dump());
    text += fmt::format(
        "\"collective\": \"{}\", \"ranks\": {}, \"ranks_per_node\": {}, \"deviation\": {:.4f}, "
        "\"deviation_short\": {:.4f},\n",
        name_of(curve.kind), curve.ranks, curve.ranks_per_node, curve.deviation, curve.deviation_short);
    if (curve.in_switch) text += "     \"in_switch\": true,\n";
    if (curve.integer) text += "     \"integer\": true,\n";
    if (!curve.steps.empty()) {
      text += "     \"steps\": [";
      for (std::size_t i = 0; i < curve.steps.size(); ++i) {
        text += fmt::format("{}[{:.2f}, {:.4f}]", i == 0 ? "" : ", ", curve.steps[i].modelled / units::us,
                            curve.steps[i].height);
      }
      text += "],\n";
    }
    text += "     \"log_ratio\": [";
    for (std::size_t k = 0; k < curve.log_ratio.size(); ++k) {
      text += fmt::format("{}{:.4f}", k == 0 ? "" : ", ", curve.log_ratio[k]);
    }
    text += "]}";
    separator = ",\n";
  }
  return text + "\n  ]\n}\n";
}

Result<NetworkCalibration> read_network_calibration(std::string_view json, const std::string& where) {
  const Json root = Json::parse(json, nullptr, false);
  if (root.is_discarded() || !root.is_object()) return wrong(where, "no JSON object", "a network calibration");
  for (const auto& [key, value] : root.items()) {
    if (key != "schema" && key != "source" && key != "curves") {
      return wrong(where + "#/" + key, fmt::format("unknown key \"{}\"", key), "schema, source, curves");
    }
  }
  if (root.value("schema", Json()) != Json(kSchema)) {
    return wrong(where + "#/schema", "another schema", fmt::format("\"{}\"", kSchema));
  }
  if (!root.contains("curves") || !root["curves"].is_array()) return wrong(where + "#/curves", "no curves", "a list");
  NetworkCalibration result;
  if (root.contains("source")) {
    if (!root["source"].is_string()) return wrong(where + "#/source", "not a text", "a sentence");
    result.source = root["source"].get<std::string>();
  }
  for (std::size_t i = 0; i < root["curves"].size(); ++i) {
    NS_TRY(CalibrationCurve curve, read_curve(root["curves"][i], fmt::format("{}#/curves/{}", where, i)));
    result.curves.push_back(std::move(curve));
  }
  return result;
}

const NetworkCalibration& builtin_network_calibration() {
  static const NetworkCalibration builtin = [] {
    NetworkCalibration all;
    for (const EmbeddedFile& file : embedded_calibrations()) {
      Result<NetworkCalibration> read = read_network_calibration(file.content, std::string(file.path));
      NS_EXPECTS(read.has_value());
      all.curves.insert(all.curves.end(), read->curves.begin(), read->curves.end());
      all.source += (all.source.empty() ? "" : "; ") + read->source;
    }
    return all;
  }();
  return builtin;
}

NetworkCalibration before_builtin(const NetworkCalibration& calibration) {
  NetworkCalibration all = calibration;
  const NetworkCalibration& builtin = builtin_network_calibration();
  all.curves.insert(all.curves.end(), builtin.curves.begin(), builtin.curves.end());
  all.source += (all.source.empty() ? "" : "; ") + builtin.source;
  return all;
}

}  // namespace ns_dist
