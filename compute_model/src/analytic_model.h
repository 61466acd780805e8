// How long an operator takes by physics alone: tiles, waves and rooflines.
#pragma once

#include "families.h"
#include "machine.h"

namespace ns_dist {

// Whether `op` is made of matrix products.
bool on_matrix_units(const Operator& op);

// Contract of all functions: the operator is valid and `machine` has a rate for its number format.
class AnalyticModel {
 public:
  explicit AnalyticModel(Machine machine) : machine_(std::move(machine)) {}

  const Machine& machine() const { return machine_; }
  Roofline roofline_of(const Operator& op, const Work& work) const;
  Estimate estimate(const Operator& op, const Work& work, const Roofline& roofline, Steps& steps) const;
  double seconds(const Operator& op) const;
  // Whether this batch of half-precision products runs on vector units: cuBLAS' kernels for tensor units read lines of
  // 16 bytes, and matrices of a batch follow each other, so that a row or a head of 108 or 150 elements breaks the
  // lines (cuBLAS documentation, "Tensor core usage"; single products have kernels for narrower lines, steps of
  // BigScience with heads of 108, 150 and 450 elements on A100 took as long as batches on vector units explain). Not
  // from Hopper on, where nothing shows it.
  bool is_off_tensor_units(const Operator& op) const;
  // The least time of half-precision products of which a matrix has rows of an odd number of elements; 0 of others, and
  // of batches on vector units. cuBLAS multiplies these with kernels of Turing that load one element at a time
  // (cutlass_75_..._align1): 98, 129 and 142 TFLOP/s of 800 on H100, the three products of GPT-2's 50,257 logits
  // (compute_model/measurements).
  double odd_rows_seconds(const Operator& op) const;
  // What limits a kernel that takes `seconds`.
  Bound bound_of(const Roofline& roofline, double seconds) const;

 private:
  Estimate streaming(const Operator& op, const Work& work, double passes, std::string_view method, Steps& steps) const;

  Machine machine_;
};

}  // namespace ns_dist
