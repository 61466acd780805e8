// Network calibrations: any text is either refused with a place, or gives forecasts that are finite, not under their
// floor and inside their interval, and reads back as it was written.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ns_dist/network_model.h"
#include "tests/support/clusters.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  const auto read = read_network_calibration(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.json");
  if (!read) {
    NS_EXPECTS(!read.error().where.empty());
    return 0;
  }
  const auto again = read_network_calibration(to_json(*read), "written.json");
  NS_EXPECTS(again.has_value() && again->curves.size() == read->curves.size());
  NetworkModelOptions options;
  options.calibration = std::make_shared<const NetworkCalibration>(before_builtin(*read));
  const auto model = make_network_model(test::dgx_a100(), options);
  NS_EXPECTS(model.has_value());
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll, CollectiveKind::kSendRecv}) {
    for (const std::int64_t ranks : {2, 8, 16}) {
      if (kind == CollectiveKind::kSendRecv && ranks != 2) continue;
      for (const double bytes : {512.0, 3e6, 1e10}) {
        const auto forecast = (*model)->forecast({kind, bytes * units::B, RankGroup{0, {{ranks, 1}}}});
        NS_EXPECTS(forecast.has_value());
        NS_EXPECTS(std::isfinite(forecast->high / units::s) && forecast->latency >= forecast->floor);
        NS_EXPECTS(forecast->low <= forecast->latency && forecast->latency <= forecast->high);
      }
    }
  }
  return 0;
}
