// A GPU as kernels see it: peaks, achievable rates and fixed costs, in base units (s, B, FLOP).
#pragma once

#include <array>

#include "ns_dist/compute_model.h"

namespace ns_dist {

struct Machine {
  Gpu gpu;
  Mode mode = Mode::kSustained;
  double sms = 1;
  double l2 = 0;                  // bytes
  double bandwidth = 0;           // nominal memory bandwidth
  double achieved_bandwidth = 0;  // of a long streaming kernel
  double vector_peak = 0;         // nominal, fp32 arithmetic
  double launch = 0;              // fixed cost of a kernel: dispatch, first loads, last stores
  std::array<double, kDTypeCount> matrix_peak{}, matrix_rate{};  // nominal; of a large GEMM that fills the SMs evenly

  double peak(DType dtype) const { return matrix_peak[static_cast<std::size_t>(dtype)]; }
  double rate(DType dtype) const { return matrix_rate[static_cast<std::size_t>(dtype)]; }
  // Arithmetic of pointwise work on operands of `dtype`: at least fp32's rate, or packed halves where they are faster.
  double vector_rate(DType dtype) const;
};

Result<Machine> make_machine(const Gpu& gpu, Mode mode);

}  // namespace ns_dist
