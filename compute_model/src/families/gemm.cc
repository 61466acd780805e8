// Products on tensor units as tiles and waves: C is cut into tiles, an SM computes one tile at a time, and tiles come
// in waves of as many as there are SMs (NeuSight, Lee et al. 2025, s.4; NVIDIA "Matrix multiplication background user's
// guide").
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "families.h"

namespace ns_dist {
namespace {

// Shares and constants: tensor_product() in families.h says where they come from.
constexpr std::array<Tile, 14> kTiles = {{
    {256, 128, 1.00, "256x128"},
    {128, 256, 1.00, "128x256"},
    {128, 128, 0.90, "128x128"},
    {256, 64, 0.78, "256x64"},
    {64, 256, 0.78, "64x256"},
    {128, 64, 0.75, "128x64"},
    {64, 128, 0.75, "64x128"},
    {64, 64, 0.51, "64x64"},
    {128, 32, 0.36, "128x32"},
    {32, 128, 0.36, "32x128"},
    {64, 32, 0.30, "64x32"},
    {32, 64, 0.30, "32x64"},
    {64, 16, 0.19, "64x16"},
    {16, 64, 0.19, "16x64"},
}};

constexpr double kLaunchAndDrain = 4250;           // clocks
constexpr double kLeastSplit = 128;                // least k that a part of a split product keeps
constexpr double kSplitSum = 6300;                 // clocks, to add up the parts
constexpr double kLoadsPerClock = 9;               // of an SM: it keeps few bytes in flight
constexpr double kGddrShare = 0.78, kShare = 0.8;  // of memory's bandwidth

// Of data that a kernel uses again after `distance` bytes of other data went through L2: all of it is still there up to
// L2's size and 2 %, nothing beyond 7 % (L40S: products whose copies take 101 MB of its 100.7 MB run at L2's bandwidth,
// those that take 110 MB at memory's).
double found_in_l2(const Machine& machine, double distance) {
  return std::clamp((1.07 - distance / machine.l2) / 0.05, 0.0, 1.0);
}

// Both pipes together, a norm of order 2.5: tiles of one product load in step, so they overlap worse than the parts of
// other kernels.
double both(double compute, double memory) {
  const double slower = std::max(compute, memory), share = std::min(compute, memory) / slower;
  return slower * std::pow(1 + share * share * std::sqrt(share), 0.4);
}

}  // namespace

ProductBytes product_bytes(double batch, double m, double n, double k, DType dtype) {
  const double element = size_of(dtype) / units::B, result = size_of(product_of(dtype)) / units::B;
  return {batch * m * k * element, batch * n * k * element, batch * m * n * result};
}

double bytes_found_in_l2(const Machine& machine, const ProductBytes& bytes) {
  const auto& [a, b, c] = bytes;
  // Benchmarks walk through as many copies of the weights as L2 holds, and one more unless the last one ends with it.
  const double copies = std::ceil(machine.l2 / std::max(b, 1.0));
  return found_in_l2(machine, copies * b + a + c) * b + found_in_l2(machine, a + b + c) * (a + c);
}

double streamed_product(const Machine& machine, double batch, double m, double n, double k, DType dtype) {
  return product_bytes(batch, m, n, k, dtype).all() / (machine.bandwidth * (machine.gddr ? kGddrShare : kShare));
}

double tensor_launch(const Machine& machine) { return kLaunchAndDrain / machine.clock_rate; }

Tiled tensor_product(const Machine& machine, double batch, double m, double n, double k, DType dtype, double ceiling,
                     bool sustained) {
  // Of the rate that power allows. Long runs heat the board: H100, H200, B200 and GB200 lose 12 %, A40 and A100 4 %.
  const double powered_share = !sustained ? 1.07 : machine.persistent_kernels ? 0.95 : 1.03;
  const double element = size_of(dtype) / units::B;
  // k steps' worth of first loads and last stores around a tile's products.
  const double ramp = (machine.tensor_memory ? 128 : 192) * 2 / element;
  const double hidden = machine.persistent_kernels ? 1 : 0;  // of the last wave's idle part
  const double per_sm = machine.peak(dtype) / machine.sms;
  // Tiles below 64 x 64 lose more than they fill where those take four waves.
  const bool large = batch * m * n >= 4 * 64 * 64 * machine.sms;
  Tiled product;
  double tiles_alone = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    if (large && std::min(tile.m, tile.n) < 64) break;
    const double tiles = batch * std::ceil(m / tile.m) * std::ceil(n / tile.n), exact = tiles / machine.sms;
    // Loads limit what is below 1, so that a board that is sold with less of its units' rate loses less.
    const double efficiency = std::min(1.0, tile.efficiency / machine.rated_share(dtype));
    const double clocks = timed_waves(exact, hidden) * 2 * tile.m * tile.n / (per_sm * efficiency);
    const double parts = exact < 0.5 ? std::min(std::floor(1 / exact), std::floor(k / kLeastSplit)) : 1;
    const double whole = clocks * (k + ramp), split = clocks * (k / parts + ramp) + kSplitSum / machine.clock_rate;
    const double alone = parts > 1 ? std::min(whole, split) : whole;
    if (alone >= tiles_alone) continue;
    tiles_alone = alone;
    product.tile = tile.name, product.tiles = tiles, product.waves = std::ceil(exact);
  }
  const double powered = 2 * batch * m * n * k / (powered_share * ceiling);
  const double larger = std::max(tiles_alone, powered), ratio = std::min(tiles_alone, powered) / larger;
  const double square = ratio * ratio;
  product.compute = larger * std::cbrt(std::sqrt(1 + square * square * square));  // a norm of order 6
  const double bandwidth = machine.bandwidth * (machine.gddr ? kGddrShare : kShare);
  const ProductBytes bytes = product_bytes(batch, m, n, k, dtype);
  const double resident = sustained ? 0 : bytes_found_in_l2(machine, bytes);
  product.memory = (bytes.all() - resident) / bandwidth +
                   resident / std::max(bandwidth, machine.sms * kLoadsPerClock * machine.clock_rate);
  product.seconds = both(product.compute, product.memory);
  return product;
}

Estimate estimate_gemm(const Machine& machine, double batch, double m, double n, double k, GemmLayout layout,
                       DType dtype, const Roofline& roofline, Steps& steps) {
  if (dtype == DType::kFp32 || !(machine.gpu.tensor[dtype] > FlopsPerSecond())) {
    return estimate_vector_gemm(machine, batch, m, n, k, layout, dtype, roofline, steps);
  }
  const Tiled product =
      tensor_product(machine, batch, m, n, k, dtype, machine.ceiling(dtype), machine.mode == Mode::kSustained);
  // Epilogues and fp32 accumulation move more than the plain product.
  const double least = product_bytes(batch, m, n, k, dtype).all();
  const double excess = std::max(0.0, roofline.bytes - least) / machine.achieved_bandwidth;
  // Half of it hides behind other tiles' products, none where memory is the slower pipe.
  const double exposed =
      std::max(kExposedEpilogue * excess, both(product.compute, product.memory + excess) - product.seconds);
  const double launch = tensor_launch(machine);
  Estimate estimate = estimate_tiled(launch, product, exposed);
  estimate.method = "tiles and waves, clock by board power";
  estimate.spread = 1.30;
  if (dtype != DType::kBf16 && dtype != DType::kFp16 && dtype != DType::kFp8) {
    // No product in other formats was measured, nor how far power lets them go. Chosen, not fitted.
    const bool alike = machine.gpu.vendor == "nvidia" && is_known_architecture(machine.gpu.architecture);
    const double unknown = std::log(1.5) * (alike ? 1 : kOtherVendor);
    estimate.spread = std::exp(std::hypot(unknown, machine.ceiling_doubt));
    estimate.extrapolated = true;
  }
  if (steps.on()) {
    steps.add("tile", product.tile, "the fastest of the candidates under this model");
    steps.add("tiles", product.tiles);
    steps.add("waves", product.waves, "tiles over SMs, rounded up");
    steps.add("compute_s", product.compute, "tiles at the nominal rate, all of them at what board power allows");
    steps.add("memory_s", product.memory, "each operand once");
    steps.add("epilogue_s", exposed);
    steps.add("launch_s", launch, "launch and drain");
  }
  return estimate;
}

}  // namespace ns_dist
