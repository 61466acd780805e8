// Reader and writer of network calibrations.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "correction.h"
#include "embedded_curves.h"
#include "links.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/network_fit.h"

namespace ns_dist {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "ns-dist/network-calibration/1";

std::string quoted(const std::string& text) { return Json(text).dump(); }

CalibrationCurve read_curve(JsonReader& reader) {
  constexpr std::int64_t kLargestGroup = std::int64_t{1} << 48;
  constexpr double kLargest = 12;                              // e^12: a hundred thousand times off is no measurement
  constexpr double kLargestDeviation = 9.99, kLongest = 1e12;  // us
  constexpr double kMostBytes = 1e18, kFastestLink = 1e9;
  CalibrationCurve curve;
  curve.cluster = reader.text("cluster", Presence::kOptional);
  curve.gpu = reader.text("gpu", Presence::kOptional);
  curve.fabric = name_of(reader.enumerator<network::LinkClass>("fabric"));
  curve.architecture = reader.text("architecture", Presence::kOptional);
  curve.link = reader.number("link_gb_per_s", 0, kFastestLink, Presence::kOptional, 0) * (units::GB / units::s);
  curve.kind = reader.enumerator<CollectiveKind>("collective");
  curve.ranks = reader.integer("ranks", 1, kLargestGroup);
  curve.ranks_per_node = reader.integer("ranks_per_node", 1, kLargestGroup);
  curve.in_switch = reader.boolean("in_switch", false);
  curve.integer = reader.boolean("integer", false);
  curve.blurred = reader.boolean("blurred", false);
  for (const std::vector<double>& step : reader.number_rows("steps", 2, 0, kLongest, Presence::kOptional)) {
    if (step.size() == 2 && step[0] > 0 && step[1] > 0 && step[1] < 10) {
      curve.steps.push_back({step[0] * units::us, step[1]});
    } else {
      reader.note("steps", "an impossible step", "[microseconds, height], both positive, heights below 10");
    }
  }
  if (curve.steps.size() > network::kMaxSteps) {
    reader.note("steps", fmt::format("{} steps", curve.steps.size()), fmt::format("at most {}", network::kMaxSteps));
  }
  curve.deviation = reader.number("deviation", 0, kLargestDeviation);
  // Files of earlier versions have one for all sizes.
  curve.deviation_short = reader.number("deviation_short", 0, kLargestDeviation, Presence::kOptional, curve.deviation);
  if (const std::vector<double> bytes = reader.numbers("bytes", 0, kMostBytes, Presence::kOptional); !bytes.empty()) {
    if (bytes.size() == 2 && bytes[0] > 0 && bytes[0] <= bytes[1]) {
      curve.least = bytes[0] * units::B, curve.most = bytes[1] * units::B;
    } else {
      reader.note("bytes", "no range of sizes", "[least, most], both positive");
    }
  }
  curve.log_ratio = reader.numbers("log_ratio", -kLargest, kLargest);
  if (curve.log_ratio.size() != network::kKnots) {
    reader.note("log_ratio", fmt::format("{} values", curve.log_ratio.size()),
                fmt::format("{} logarithms of a ratio", network::kKnots));
  }
  return curve;
}

}  // namespace

std::string measured_elsewhere(const NetworkCalibration& calibration, std::span<const std::string> clusters) {
  const std::vector<CalibrationCurve>& curves = calibration.curves;
  const auto holds = [&](const CalibrationCurve& curve) {
    return curve.cluster.empty() || std::find(clusters.begin(), clusters.end(), curve.cluster) != clusters.end();
  };
  if (curves.empty() || clusters.empty() || std::any_of(curves.begin(), curves.end(), holds)) return "";
  return fmt::format("network/calibration was measured on {}; it changes nothing on {}", curves.front().cluster,
                     fmt::join(clusters, ", "));
}

std::string measured_on_other_links(const NetworkCalibration& calibration, const Cluster& cluster) {
  constexpr double kSame = 1e-6;  // what reading and writing a number may change
  const std::vector<network::Link> links = network::links_of(cluster);
  for (const CalibrationCurve& curve : calibration.curves) {
    if (curve.cluster != cluster.id || !(curve.link > BytesPerSecond())) continue;
    const auto is_of_it = [&](const network::Link& link) { return name_of(link.link_class) == curve.fabric; };
    const double measured = curve.link / (units::B / units::s);
    const auto here = std::find_if(links.begin(), links.end(), is_of_it);
    const bool same = std::any_of(links.begin(), links.end(), [&](const network::Link& link) {
      return is_of_it(link) && std::abs(link.peak / measured - 1) < kSame;
    });
    if (here == links.end() || same) continue;
    return fmt::format(
        "network/calibration was measured with {} a GPU {} nodes, and this machine has {}: corrections "
        "are carried over as the modeled times change, and intervals are wider",
        to_text(curve.link), here->network() ? "between" : "inside", to_text(here->peak * (units::B / units::s)));
  }
  return "";
}

// One curve a line, four decimals: 0.01 % of time.
std::string to_json(const NetworkCalibration& calibration) {
  std::string text =
      fmt::format("{{\n  \"schema\": \"{}\",\n  \"source\": {},\n  \"curves\": [", kSchema, quoted(calibration.source));
  const char* separator = "\n";
  for (const CalibrationCurve& curve : calibration.curves) {
    text += separator;
    text += "    {";
    if (!curve.cluster.empty()) text += fmt::format("\"cluster\": {}, ", quoted(curve.cluster));
    if (!curve.gpu.empty()) text += fmt::format("\"gpu\": {}, ", quoted(curve.gpu));
    text += fmt::format("\"fabric\": {}, \"architecture\": {}, ", quoted(curve.fabric), quoted(curve.architecture));
    if (curve.link > BytesPerSecond()) {
      text += fmt::format("\"link_gb_per_s\": {}, ", curve.link / (units::GB / units::s));
    }
    text += fmt::format(
        "\"collective\": \"{}\", \"ranks\": {}, \"ranks_per_node\": {}, \"deviation\": {:.4f}, "
        "\"deviation_short\": {:.4f},\n",
        name_of(curve.kind), curve.ranks, curve.ranks_per_node, curve.deviation, curve.deviation_short);
    if (curve.most > Bytes()) {
      text += fmt::format("     \"bytes\": [{}, {}],\n", curve.least / units::B, curve.most / units::B);
    }
    if (curve.in_switch) text += "     \"in_switch\": true,\n";
    if (curve.integer) text += "     \"integer\": true,\n";
    if (curve.blurred) text += "     \"blurred\": true,\n";
    if (!curve.steps.empty()) {
      text += "     \"steps\": [";
      for (std::size_t i = 0; i < curve.steps.size(); ++i) {
        text += fmt::format("{}[{:.2f}, {:.4f}]", i == 0 ? "" : ", ", curve.steps[i].modeled / units::us,
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
  NS_TRY(const Json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  reader.schema(kSchema);
  if (!errors.empty()) return fail(join(std::move(errors)));
  NetworkCalibration result;
  result.source = reader.text("source", Presence::kOptional);
  reader.objects("curves", [&](JsonReader& curve) { result.curves.push_back(read_curve(curve)); });
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return result;
}

const NetworkCalibration& builtin_network_calibration() {
  static const NetworkCalibration builtin = [] {
    NetworkCalibration all;
    all.source = embedded_sources();
    all.curves.reserve(embedded_curves().size());
    for (const EmbeddedCurve& from : embedded_curves()) {
      CalibrationCurve& curve = all.curves.emplace_back();
      curve.compiled_in = true;
      curve.cluster = from.cluster;
      curve.gpu = from.gpu;
      curve.fabric = from.fabric;
      curve.architecture = from.architecture;
      curve.link = from.link_gb_per_s * (units::GB / units::s);
      const auto kind = enumerator_from_name<CollectiveKind>(from.collective);
      NS_EXPECTS(kind.has_value());
      curve.kind = *kind;
      curve.ranks = from.ranks;
      curve.ranks_per_node = from.ranks_per_node;
      curve.in_switch = from.in_switch;
      curve.integer = from.integer;
      curve.log_ratio.assign(std::begin(from.log_ratio), std::end(from.log_ratio));
      for (const EmbeddedStep& step : from.steps) {
        if (step.height > 0) curve.steps.push_back({step.microseconds * units::us, step.height});
      }
      curve.deviation = from.deviation;
      curve.deviation_short = from.deviation_short;
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
