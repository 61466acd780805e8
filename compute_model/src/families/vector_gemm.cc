// Matrix products on the vector units (FP32 without TF32): tiles and waves under three ceilings, what an SM's
// schedulers can issue, what memory and L2 deliver, and what the board's power pays for.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "families.h"

namespace ns_dist {
namespace {

// Tiles that cuBLAS launches for single products, by kernel names in NeuSight's FP32 training tables; efficiencies are
// their medians on V100 and A100 over products of at least eight waves (0.92-0.93 for 128x128, 0.63-0.68 for 32x32).
constexpr std::array<Tile, 9> kSingle = {{{128, 128, 1.00, "128x128"},
                                          {64, 128, 0.97, "64x128"},
                                          {128, 64, 0.97, "128x64"},
                                          {64, 64, 0.90, "64x64"},
                                          {32, 128, 0.85, "32x128"},
                                          {128, 32, 0.85, "128x32"},
                                          {32, 64, 0.76, "32x64"},
                                          {64, 32, 0.76, "64x32"},
                                          {32, 32, 0.70, "32x32"}}};
// maxwell_sgemm, P100 and P4: no large tile for the layout of linear layers.
constexpr std::array<Tile, 3> kSinglePascal = {
    {{128, 32, 0.90, "128x32"}, {32, 128, 0.90, "32x128"}, {64, 64, 0.82, "64x64"}}};
// Batched products take one tile, whatever their size: narrow matrices (a head dimension of 64) are padded to it.
constexpr std::array<Tile, 1> kBatchedWide = {{{128, 128, 1.00, "128x128"}}};  // cc 8.0 and newer run sm80 kernels
constexpr std::array<Tile, 1> kBatchedPascal = {{{64, 128, 1.00, "64x128"}}};  // maxwell_sgemm
constexpr std::array<Tile, 2> kBatchedVolta = {{{128, 32, 0.88, "128x32"}, {64, 64, 0.83, "64x64"}}};
constexpr std::array<Tile, 3> kBatchedTuring = {
    {{64, 128, 1.00, "64x128"}, {64, 64, 0.90, "64x64"}, {32, 128, 0.80, "32x128"}}};

// rocBLAS' FP32 matrix-unit kernels, by name: 128x64 and 64x64 for batched products (NeuSight's kernels on MI100,
// MI210).
constexpr std::array<Tile, 3> kBatchedAmd = {
    {{128, 64, 0.90, "128x64"}, {64, 128, 0.90, "64x128"}, {64, 64, 0.85, "64x64"}}};
// Products of transposed views (queries by keys) run at about this share of the others' rate there.
constexpr double kTransposedAmd = 0.75;

std::span<const Tile> tiles_of(const Machine& machine, bool batched) {
  if (!batched) return machine.gpu.architecture == "pascal" ? std::span<const Tile>(kSinglePascal) : kSingle;
  if (machine.gpu.vendor == "amd") return kBatchedAmd;
  const std::string_view architecture = machine.gpu.architecture;
  if (architecture == "pascal") return kBatchedPascal;
  if (architecture == "volta") return kBatchedVolta;
  if (architecture == "turing") return kBatchedTuring;
  return kBatchedWide;
}

// k steps' worth of loads and stores around a tile's products: A100's batched 128x128 kernels reach 0.59, 0.74, 0.81,
// 0.86 and 0.89 of the peak at k = 24, 48, 96, 192 and 768.
constexpr double kRamp = 10;
constexpr double kPaddingEnergy = 0.5;  // of a product's: padding multiplies zeros, which switch little
constexpr double kSplitDepth = 256;     // least k that a part of a split product keeps

}  // namespace

Estimate estimate_vector_gemm(const Machine& machine, double batch, double m, double n, double k, GemmLayout layout,
                              DType dtype, const Roofline& roofline, Steps& steps) {
  const double bytes = size_of(dtype) / units::B;
  const bool transposed = machine.gpu.vendor == "amd" && batch > 1 && layout == GemmLayout::kNT;
  // Halves that do not run on tensor units are multiplied in FP32.
  const double peak = machine.peak(machine.gpu.tensor[dtype] > FlopsPerSecond() ? DType::kFp32 : dtype);
  const double per_sm = peak * machine.issue_share * (transposed ? kTransposedAmd : 1) / machine.sms;
  const double least = batch * (m * k + n * k + m * n) * bytes;

  std::optional<Tiled> best;
  double best_clock = 1;
  for (const Tile& tile : tiles_of(machine, batch > 1)) {
    const double tiles = batch * std::ceil(m / tile.m) * std::ceil(n / tile.n);
    const double exact = tiles / machine.sms;
    const double split =
        batch <= 1 && exact < 0.5 ? std::clamp(std::floor(1 / exact), 1.0, std::max(1.0, k / kSplitDepth)) : 1;
    const double flops = 2 * tile.m * tile.n * (k + kRamp);
    const double compute = timed_waves(exact) * flops / (per_sm * tile.efficiency) / split;
    const double memory = machine.memory_seconds(least);
    const double switched = kPaddingEnergy * tiles * flops + (1 - kPaddingEnergy) * 2 * batch * m * n * k;
    constexpr double kMargin = 1 + 1e-7;  // beyond rounding
    const double limit = best ? kMargin * best->seconds : std::numeric_limits<double>::infinity();
    const PoweredTime powered =
        machine.powered(compute, memory, switched, least, bytes / 4 * machine.matrix_energy, limit);
    if (!best || powered.seconds < best->seconds) {
      best = {tile.name, tiles, std::ceil(exact), compute, memory, powered.seconds};
      best_clock = powered.clock;
    }
  }

  const double excess = machine.memory_seconds(std::max(0.0, roofline.bytes - least));
  Estimate estimate = estimate_tiled(machine.launch, *best, excess);
  estimate.method = "tiles and waves on the vector units, clock by board power";
  estimate.spread = 1.25;
  if (steps.on()) {
    steps.add("tile", best->tile, "rows x columns; the fastest of the candidates under this model");
    steps.add("tiles", best->tiles);
    steps.add("waves", best->waves, "tiles over SMs, rounded up");
    steps.add("issue_share", machine.issue_share, "of the peak, by lanes a scheduler feeds");
    steps.add("clock_share", best_clock, "of the boost clock, where board power pays for no more");
    steps.add("compute_s", best->compute, "padded work at full clock");
    steps.add("memory_s", best->memory);
    steps.add("epilogue_s", excess);
    steps.add("launch_s", machine.launch);
  }
  return estimate;
}

}  // namespace ns_dist
