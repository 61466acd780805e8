// A GPU as kernels see it: peaks, achievable rates and fixed costs, in base units (s, B, FLOP).
#pragma once

#include <array>
#include <limits>

#include "ns_dist/compute_model.h"

namespace ns_dist {

// How much wider an interval is, in logarithms, where no GPU of this vendor was fitted. One best product each of
// MI300X, MI325X and MI355X that others published (S. Bekman, ml-engineering, max-achievable FLOPS) takes 11 and 4 %
// longer and 6 % less than forecast.
inline constexpr double kOtherVendor = 1.7;

// A kernel's time at the clock that the board's power allows.
struct PoweredTime {
  double seconds = 0;
  double clock = 1;  // share of the boost clock
};

struct Machine {
  Gpu gpu;
  Mode mode = Mode::kSustained;
  double sms = 1;
  bool gddr = false;  // memory on the board, not on the package
  // Tensor units fed by a warp group from shared memory (compute capability 9.x, 10.x and 11.x) rather than by single
  // warps from registers; with accumulators in a memory of their own (10.x, 11.x).
  bool persistent_kernels = false, tensor_memory = false;
  double l2 = 0;                  // bytes
  double bandwidth = 0;           // nominal memory bandwidth
  double achieved_bandwidth = 0;  // of a long streaming kernel
  double vector_peak = 0;         // nominal, fp32 arithmetic
  double clock_rate = 0;          // boost, Hz; 1.5 GHz where the data sheet has none
  double exponential_rate = 0;    // of all SMs, 1/s
  // Exponentials a clock and SM since Volta (CUDA C++ programming guide, "Arithmetic instructions").
  static constexpr double kExponentials = 16;
  double resident_threads = 2048;  // that an SM runs at a time
  double launch = 0;               // fixed cost of a kernel: dispatch, first loads, last stores
  // Nominal; what the board's power lets tensor units do (machine.cc).
  std::array<double, kDTypeCount> matrix_peak{}, matrix_ceiling{};

  // Rated peaks over what the tensor units do at the boost clock: half on GeForce boards, a quarter on H20, which are
  // sold with a part of the rate. What else an SM does stays as fast.
  std::array<double, kDTypeCount> rated_shares{};
  double ceiling_doubt = 0;   // how far, in logarithms, power may let tensor units do more or less than that
  double issue_share = 1;     // of the vector peak that a matrix product's instructions leave to its products
  double resident_bytes = 0;  // of a tensor that L2 still holds for the next kernel
  double l2_bandwidth = 0;
  double watts = 0, idle_watts = 0;  // board power limit, 0 where it is unknown; what it draws without work
  double flop_joules = 0;            // of an FP32 operation at the lowest voltage
  double matrix_energy = 1;          // of an FP32 product on matrix units against the vector units
  double byte_joules = 0;            // of a byte moved from or to memory

  double rated_share(DType dtype) const { return rated_shares[static_cast<std::size_t>(dtype)]; }
  double peak(DType dtype) const { return matrix_peak[static_cast<std::size_t>(dtype)]; }
  double ceiling(DType dtype) const { return matrix_ceiling[static_cast<std::size_t>(dtype)]; }
  // Arithmetic of pointwise work on operands of `dtype`: at least fp32's rate, or packed halves where they are faster.
  double vector_rate(DType dtype) const;
  // Seconds to move `bytes` of tensors that were just written or will be read next: what L2 holds is not paid twice.
  double memory_seconds(double bytes) const;
  // Work that takes `compute` and `memory` seconds at full clock and does `flops` (`weight`: energy of one against
  // FP32's) and moves `bytes`. Solves board power = idle + flops x energy(voltage) + bytes x energy for the clock.
  // A kernel that takes longer than `limit` seconds may get any other time above it.
  PoweredTime powered(double compute, double memory, double flops, double bytes, double weight,
                      double limit = std::numeric_limits<double>::infinity()) const;
};

Result<Machine> make_machine(const Gpu& gpu, Mode mode);

// NVIDIA's compute capability as a number, 9.0; 0 where the GPU has none.
double capability_of(const Gpu& gpu);

}  // namespace ns_dist
