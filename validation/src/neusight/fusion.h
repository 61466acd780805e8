// Which steps a compiler runs as one kernel, and what that kernel moves.
//
//   // bias add, GELU: one kernel that reads the product and the bias and writes once.
//   const auto kernels = fuse(std::vector<FusionStep>{{product}, {add, {0}, bias_elements}, {gelu, {1}}});
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

// One operator of a dataflow graph, in an order in which it can run.
struct FusionStep {
  Operator op;
  std::vector<std::size_t> from{};  // steps whose outputs it reads
  double outside = 0;               // elements it reads that no step makes: weights, masks, inputs
  bool kept = false;                // its output is wanted beside what later steps read; always so without a reader
};

struct FusedKernel {
  Operator op;                     // its latency is the kernel's
  std::vector<std::size_t> steps;  // that run inside, in order
};

// Pointwise steps, and softmax and normalization forward as anchors, run as one kernel with the producers of what they
// read, as torch.compile's Inductor and Megatron's fused kernels do, under three conditions: all have as many elements,
// one number format, and no other kernel lies between them. Other steps (products, collectives' buffers, optimizers)
// stay kernels of their own. A fused kernel is launched once, reads each tensor from outside once and writes what
// others read; traffic between its steps is gone, their arithmetic stays. Its time is then the slower of both, as for
// any pointwise operator. Kernels come in the order of their last step.
// Errors: a step that reads itself or a later one; an invalid operator; a negative or non-finite `outside`.
Result<std::vector<FusedKernel>> fuse(std::span<const FusionStep> steps);

}  // namespace ns_dist
