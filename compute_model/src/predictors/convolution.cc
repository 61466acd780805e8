#include "predictors/predictor.h"

namespace ns_dist {

constinit const PredictorKind kConvolutionPredictor = {
    "convolution",
    "tiles, waves and clock by board power",
    [] {
      return Operator{Convolution{}, DType::kFp32};
    },
    [](const Operator& op, const Gpu&, Mode mode) {
      const auto* convolution = std::get_if<Convolution>(&op.kind);
      return mode == Mode::kBurst && convolution != nullptr && convolution->pass == Pass::kForward &&
             op.dtype == DType::kFp32;
    },
    [](FeatureWriter& w, const Machine& machine, const Operator& op, Mode) {
      const auto& conv = std::get<Convolution>(op.kind);
      const double peak = machine.peak(op.dtype), ceiling = fp32_ceiling(machine, peak);
      // As the matrix product that it is. Waves by fraction: libraries choose tiles, and split k, so that the last wave
      // is rarely idle.
      const double m = d(conv.batch) * conv.out_height() * conv.out_width();
      const double n = d(conv.out_channels), k = d(conv.in_channels) * d(conv.kernel) * d(conv.kernel);
      const double bytes = product_bytes(1, m, n, k, op.dtype).all();
      gemm_features(w, machine, 1, m, n, k, ceiling, op.dtype, false);
      w.out.base = kSmallLaunch + 1.15 * overlap(2 * m * n * k / ceiling, warm_seconds(machine, bytes));
      w.add("variant", 0);
      w.add("kernel", d(conv.kernel));
      w.add("stride", d(conv.stride));
      w.add_log("log_input", d(conv.in_height) * d(conv.in_width));
      gpu_ratios(w, machine, peak, ceiling);
    },
    {150, 100, 0.15}};

}  // namespace ns_dist
