// GEMM as tiles and waves: C is cut into tiles, an SM computes one tile at a time, and tiles come in waves of as many
// as there are SMs (NeuSight, Lee et al. 2025, s.4; NVIDIA "Matrix multiplication background user's guide").
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "families.h"

namespace ns_dist {
namespace {

// Tiles that cuBLAS and CUTLASS ship for tensor cores. Efficiencies: CUTLASS profiler ratios between these tiles on
// large problems, rounded.
constexpr std::array<Tile, 8> kTiles = {{
    {256, 128, 1.00, "256x128"},
    {128, 256, 1.00, "128x256"},
    {128, 128, 0.95, "128x128"},
    {256, 64, 0.90, "256x64"},
    {64, 256, 0.90, "64x256"},
    {128, 64, 0.82, "128x64"},
    {64, 128, 0.82, "64x128"},
    {64, 64, 0.65, "64x64"},
}};

constexpr double kStage = 64;  // k is padded to a whole number of pipeline stages
// Memory traffic beyond reading each operand once: tiles of a wave share operands through L2, the next wave reads
// again.
double traffic(const Machine& machine, double batch, double m, double n, double k, const Tile& tile, double bytes) {
  const double columns = std::ceil(n / tile.n), rows = std::ceil(m / tile.m);
  // A wave covers about a square of tiles; it reads that square's rows of A and columns of B once.
  const double side_rows = std::min(rows, std::max(1.0, std::sqrt(machine.sms * tile.n / tile.m)));
  const double side_columns = std::min(columns, std::max(1.0, machine.sms / side_rows));
  double a = m * k, b = n * k;
  if ((a + b) * bytes > machine.l2) {  // otherwise the whole operands stay in L2
    a *= std::ceil(columns / side_columns);
    b *= std::ceil(rows / side_rows);
    // Where one of them fits in half of L2 it is read once.
    if (m * k * bytes < machine.l2 / 2) a = m * k;
    if (n * k * bytes < machine.l2 / 2) b = n * k;
  }
  return batch * (a + b + m * n) * bytes;
}

}  // namespace

Estimate estimate_gemm(const Machine& machine, double batch, double m, double n, double k, GemmLayout layout, Epilogue,
                       DType dtype, const Roofline& roofline, Steps& steps) {
  if (dtype == DType::kFp32 || !(machine.gpu.tensor[dtype] > FlopsPerSecond())) {
    return estimate_vector_gemm(machine, batch, m, n, k, layout, dtype, roofline, steps);
  }
  const double bytes = size_of(dtype) / units::B;
  const double padded_k = std::ceil(k / kStage) * kStage;
  const double rate_per_sm = machine.rate(dtype) / machine.sms;

  std::optional<Tiled> best;
  for (const Tile& tile : kTiles) {
    const double tiles = batch * std::ceil(m / tile.m) * std::ceil(n / tile.n);
    const double tile_seconds = 2 * tile.m * tile.n * padded_k / (rate_per_sm * tile.efficiency);
    const double exact = tiles / machine.sms;
    // With fewer tiles than SMs, k is split over the idle ones as long as each part keeps four stages.
    const double split =
        exact < 0.5 ? std::clamp(std::floor(1 / exact), 1.0, std::max(1.0, padded_k / (4 * kStage))) : 1;
    const double compute = timed_waves(exact) * tile_seconds / split;
    const double memory =
        (traffic(machine, batch, m, n, k, tile, bytes) + (split > 1 ? split * m * n * batch * 8 : 0)) /
        machine.achieved_bandwidth;
    const double seconds = overlap(compute, memory);
    if (!best || seconds < best->seconds) best = {tile.name, tiles, std::ceil(exact), compute, memory, seconds};
  }

  // Epilogues and fp32 accumulation move more than the plain product: the roofline's excess is charged at the streaming
  // rate.
  const double least = batch * (m * k + k * n + m * n) * bytes;
  // Half of it hides behind other tiles' products, none where memory is the slower pipe.
  const double excess = std::max(0.0, roofline.bytes - least) / machine.achieved_bandwidth;
  const double exposed =
      std::max(kExposedEpilogue * excess, overlap(best->compute, best->memory + excess) - best->seconds);
  Estimate estimate = estimate_tiled(machine, *best, exposed);
  estimate.method = "tiles and waves, efficiency by architecture";
  estimate.spread = 1.30;
  if (steps.on()) {
    steps.add("tile", best->tile, "the fastest of the candidates under this model");
    steps.add("tiles", best->tiles);
    steps.add("waves", best->waves, "tiles over SMs, rounded up");
    steps.add("compute_s", best->compute, "padded work at the GPU's large-GEMM rate");
    steps.add("memory_s", best->memory, "operands re-read by wave at the streaming rate");
    steps.add("epilogue_s", exposed);
    steps.add("launch_s", machine.launch);
  }
  return estimate;
}

}  // namespace ns_dist
