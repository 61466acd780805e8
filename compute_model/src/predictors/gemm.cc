#include "predictors/predictor.h"

namespace ns_dist {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

// What every FP32 product measured alone carries: launches one by one, each awaited. Medians of the smallest products
// (below 2e7 FLOP) of NeuSight's training tables.
constexpr double kAloneFloor = 40e-6;

void write_gemm(FeatureWriter& w, const Machine& machine, const Operator& op, Mode mode, double ceiling,
                double variant) {
  const Gemm& gemm = std::get<Gemm>(op.kind);
  gemm_features(w, machine, d(gemm.batch), d(gemm.m), d(gemm.n), d(gemm.k), ceiling, size_of(op.dtype) / units::B,
                mode == Mode::kSustained && op.dtype != DType::kFp8);  // FP8 was measured in bursts
  w.add("variant", variant);
}

bool is_gemm(const Operator& op) { return std::holds_alternative<Gemm>(op.kind); }

}  // namespace

constinit const PredictorKind kGemmPredictor = {
    "gemm",
    "tiles, waves and clock by board power",
    [] {
      return Operator{Gemm{}, DType::kBf16};
    },
    [](const Operator& op, const Gpu& gpu, Mode) { return is_gemm(op) && on_half_precision_units(op, gpu); },
    [](FeatureWriter& w, const Machine& machine, const Operator& op, Mode mode) {
      const double peak = machine.peak(op.dtype), ceiling = machine.ceiling(op.dtype);
      write_gemm(w, machine, op, mode, ceiling, op.dtype == DType::kFp16 ? 1 : 0);
      gpu_ratios(w, machine, peak, ceiling);
    },
    {200, 850, 0.2, 120, 48, 8000},
    [](const Operator&, Mode mode) -> std::size_t { return mode == Mode::kSustained ? 1 : 0; },
    [](std::size_t kernel_class) { return std::string(name_of(kernel_class == 1 ? Mode::kSustained : Mode::kBurst)); }};

constinit const PredictorKind kGemmFp8Predictor = {
    "gemm_fp8",
    "tiles, waves and clock by board power",
    [] {
      return Operator{Gemm{}, DType::kFp8};
    },
    [](const Operator& op, const Gpu&, Mode) { return is_gemm(op) && op.dtype == DType::kFp8; },
    [](FeatureWriter& w, const Machine& machine, const Operator& op, Mode mode) {
      const double peak = machine.peak(op.dtype), ceiling = machine.ceiling(op.dtype);
      const Gemm& gemm = std::get<Gemm>(op.kind);
      write_gemm(w, machine, op, mode, ceiling, gemm.scaling == Scaling::kBlock ? 1 : 0);
      const double product = w.out.base;
      w.out.base += quantization_seconds(machine, d(gemm.m) * d(gemm.k), gemm.scaling);
      w.out.product_share = product / w.out.base;
      gpu_ratios(w, machine, peak, ceiling);
    },
    {200, 450, 0.17, 120, 48, 6000}};

constinit const PredictorKind kGemmFp32Predictor = {
    "gemm_fp32",
    "tiles, waves and clock by board power",
    [] {
      return Operator{Gemm{}, DType::kFp32};
    },
    [](const Operator& op, const Gpu&, Mode mode) {
      return is_gemm(op) && op.dtype == DType::kFp32 && mode == Mode::kBurst;
    },
    [](FeatureWriter& w, const Machine& machine, const Operator& op, Mode mode) {
      const Gemm& gemm = std::get<Gemm>(op.kind);
      const double peak = machine.peak(op.dtype), ceiling = fp32_ceiling(machine, peak);
      write_gemm(w, machine, op, mode, ceiling, gemm.layout == GemmLayout::kNN ? 1 : 0);
      // Tiles, issue and power as the analytic model knows them: what is left to learn carries over between GPUs.
      Steps nobody(nullptr);
      w.out.base = kAloneFloor + estimate_vector_gemm(machine, d(gemm.batch), d(gemm.m), d(gemm.n), d(gemm.k),
                                                      gemm.layout, op.dtype, Roofline{}, nobody)
                                     .seconds;
      gpu_ratios(w, machine, peak, ceiling);
    },
    {200, 400, 0.17, 60, 32, 6000, Elsewhere::kPhysics}};

}  // namespace ns_dist
