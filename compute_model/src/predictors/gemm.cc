#include "predictors/predictor.h"

namespace ns_dist {
namespace {

// What every FP32 product measured alone carries: launches one by one, each awaited. Medians of the smallest products
// (below 2e7 FLOP) of NeuSight's training tables.
constexpr double kAloneFloor = 40e-6;

void write_gemm(FeatureWriter& w, const Machine& machine, const Operator& op, Mode mode, double ceiling,
                double variant) {
  const Gemm& gemm = std::get<Gemm>(op.kind);
  gemm_features(w, machine, d(gemm.batch), d(gemm.m), d(gemm.n), d(gemm.k), ceiling, op.dtype,
                mode == Mode::kSustained && op.dtype != DType::kFp8);  // FP8 was measured in bursts
  w.add("variant", variant);
}

// The product's tiles with its launch. The tile is the fastest under this model; a library may take another.
double tile_seconds(FeatureWriter& w, const Machine& machine, const Gemm& gemm, DType dtype, double ceiling,
                    bool sustained) {
  const Tiled product =
      tensor_product(machine, d(gemm.batch), d(gemm.m), d(gemm.n), d(gemm.k), dtype, ceiling, sustained);
  w.out.tile = product.tile, w.out.waves = product.waves;
  return tensor_launch(machine) + product.seconds;
}

// Units that know no block scales add up 128 products of a sum at a time; vector units scale that and add it to the sum
// (DeepSeek-V3, arXiv 2412.19437, section 3.3.2): an instruction for the scale and one for the sum. Units that multiply
// in 4 bits have block scales.
double promotion_seconds(const Machine& machine, double m, double n, double k, Scaling scaling) {
  if (scaling != Scaling::kBlock || machine.gpu.tensor[DType::kFp4] > FlopsPerSecond()) return 0;
  constexpr double kInstructions = 2, kFlop = 2, kProducts = 128;  // FLOP of the vector peak for each instruction
  return kInstructions * kFlop * m * n * k / kProducts / machine.vector_peak;
}

// FP8 products were measured with the quantization of their activations (m x k), in kernels before the product: largest
// element and cast for one scale a tensor, one kernel for a scale a block. Least mean error of the base alone on
// samples of published tables of L40S, H100, H200, B200, B300 and GB200, the same for all: 11 % with one scale (31
// without this term), 22 % in blocks, whose products on Hopper and Ada are a fifth and more slower than others.
double quantization_seconds(const Machine& machine, double m, double k, Scaling scaling) {
  const bool block = scaling == Scaling::kBlock;
  const double bytes = (block ? 5 : 7) * m * k;
  const double resident = std::min(1.0, 0.6 * machine.l2 / std::max(bytes, 1.0)), bandwidth = 0.87 * machine.bandwidth;
  const double found = std::max(bandwidth, machine.sms * (block ? 10 : 20) * machine.clock_rate);
  return (block ? 3.5e-6 : 11e-6) + bytes * ((1 - resident) / bandwidth + resident / found);
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
      // Bursts in fp16 were timed inside the layers of an inference engine. So were the long runs of A40, A100 and
      // H100, which stand for bf16, too: it runs the same kernels.
      write_gemm(w, machine, op, mode, ceiling, op.dtype == DType::kFp16 && mode == Mode::kBurst ? 1 : 0);
      const Gemm& gemm = std::get<Gemm>(op.kind);
      if (w.wants_base) w.out.base = tile_seconds(w, machine, gemm, op.dtype, ceiling, mode == Mode::kSustained);
      gpu_ratios(w, machine, peak, ceiling);
    },
    {.known_trees = 200, .known_leaves = 850, .known_rate = 0.2, .elsewhere = Elsewhere::kOperatorAlone, .trust = 0.4},
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
      gpu_ratios(w, machine, peak, ceiling);
      if (!w.wants_base) return;
      const double product = tile_seconds(w, machine, gemm, op.dtype, ceiling, false) +
                             promotion_seconds(machine, d(gemm.batch) * d(gemm.m), d(gemm.n), d(gemm.k), gemm.scaling);
      const double both = product + quantization_seconds(machine, d(gemm.batch) * d(gemm.m), d(gemm.k), gemm.scaling);
      w.out.base = gemm.quantizes ? both : product;
      w.out.measured_share = w.out.base / both;
    },
    {.known_trees = 200,
     .known_leaves = 450,
     .known_rate = 0.17,
     .elsewhere = Elsewhere::kOperatorAlone,
     .trust = 0.4}};

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
    {200, 400, 0.17, Elsewhere::kPhysics},
    // Few large products choose among many kernels; batches of small ones do not.
    [](const Operator& op, Mode) -> std::size_t { return std::get<Gemm>(op.kind).batch > 1 ? 1 : 0; },
    [](std::size_t kernel_class) { return std::string(kernel_class == 1 ? "batches" : "single products"); }};

}  // namespace ns_dist
