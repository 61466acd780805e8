// Kernel calibrations: any text is either refused with a place, or gives forecasts that are finite, not under their
// floor and inside their interval, and reads back as it was written.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ns_dist/kernel_calibration.h"
#include "tests/support/gpus.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ns_dist;
  auto read = read_kernel_calibration(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.json");
  if (!read) {
    NS_EXPECTS(!read.error().where.empty());
    return 0;
  }
  const auto again = read_kernel_calibration(to_json(*read), "written.json");
  NS_EXPECTS(again.has_value() && *again == *read);
  read->gpu = h100().id;
  const auto model = make_compute_model(
      h100(), {.mode = read->mode, .analytic = true, .calibration = std::make_shared<const KernelCalibration>(*read)});
  NS_EXPECTS(model.has_value());
  for (const Operator& op : {Operator{Gemm{.m = 1, .n = 1, .k = 1}}, Operator{Gemm{.m = 8192, .n = 8192, .k = 8192}},
                             Operator{Copy{1 * units::GB}}}) {
    const auto forecast = (*model)->forecast(op);
    NS_EXPECTS(forecast.has_value());
    NS_EXPECTS(std::isfinite(forecast->high / units::s) && forecast->latency >= forecast->floor);
    NS_EXPECTS(forecast->low <= forecast->latency && forecast->latency <= forecast->high);
  }
  return 0;
}
