// What PyTorch launches for a node of an operator graph, and what a step made of such nodes takes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "neusight/model_graph.h"
#include "ns_dist/cost.h"
#include "ns_dist/gpu.h"
#include "ns_dist/interval_sum.h"

namespace ns_dist {

// Kernels of one node in one phase, in order; empty where it only makes a view or counts on the host. fp32.
//
// Forward kernels follow the node's operators. Backward ones follow what PyTorch 2.1 runs, which the tables of
// operators do not show: softmax multiplies gradient and output before its reduction (softmax_backward_cuda_out),
// dropout scales its mask as a float tensor first (native_dropout_backward), LayerNorm has a kernel for its input and
// one for its weights, an addition passes gradients on, division and multiplication by a scalar have one gradient.
// `l2`: bytes of cache; a broadcast operand is read again each time unless its repeated part, and as much of
// the other operand and of the output, fit in 0.7 of it.
std::vector<Operator> eager_kernels(const ModelGraph& graph, const ModelNode& node, ModelPhase phase, double l2);

// "Linear", "BMM", "VECsoftmax", "VECln", "VEC" for other vector operators; empty for what belongs to none.
std::string_view class_of(const ModelNode& node);

// How much of the kernels' errors in one model on one GPU is one and the same, for IntervalSum: the least share at
// which intervals hold 90 % of fitted GPUs' sums (P4, P100, V100, T4, A100-PCIe-40GB, MI100, MI210), 65 whole models
// (94 %) and 186 sums by class (87 %) counted as a half each. Whole models alone would ask for 0.36.
inline constexpr double kSharedError = 0.47;

// Forecasts operators, each distinct one once.
class KernelClock {
 public:
  explicit KernelClock(const ComputeCost& cost) : cost_(&cost) {}
  Result<IntervalEstimate> operator()(const Operator& op);  // seconds

 private:
  const ComputeCost* cost_;
  std::map<std::string, IntervalEstimate> known_;
};

// A node measured alone: CPU and GPU start idle, so dispatching it shows. Phases without kernels cost their dispatch.
Result<IntervalSum> node_alone(const ModelGraph& graph, const ModelNode& node, ModelPhase phase, double l2,
                               KernelClock& clock);

// Bytes of the weights (of a rank's own ones where the graph is tensor-parallel); gradients are as many again.
double weight_bytes(const ModelGraph& graph, std::int64_t layers);

// What the forward pass of a training step asks the driver for, from an empty cache: calls of cudaMalloc and the bytes
// of their segments. Tensors that backward reads stay, others go with their last reader.
struct MappedMemory {
  std::int64_t calls = 0;
  double bytes = 0;
};
MappedMemory mapped_by_forward(const ModelGraph& graph, std::int64_t layers);

// A training step on several GPUs, by Megatron in fp32: forward, loss, backward, optimizer.
struct ParallelDegrees {
  std::int64_t data = 1, tensor = 1, pipeline = 1;
};
// One microbatch: stages run one after another. Gradients of data parallelism go out in buckets while backward runs;
// reductions of tensor parallelism and hops between stages wait. Errors: a collective that the network cannot do.
Result<IntervalSum> distributed_step(const ModelGraph& graph, std::int64_t layers, const ParallelDegrees& degrees,
                                     const Gpu& gpu, KernelClock& clock, const NetworkCost& network);

// A whole step: every node once for each layer that it represents, forward only or with backward. Collectives are left
// out.
struct StepTime {
  IntervalSum forward, backward;  // seconds
  IntervalSum total() const {
    IntervalSum sum = forward;
    sum.add(backward);
    return sum;
  }
};
Result<StepTime> eager_step(const ModelGraph& graph, std::int64_t layers, bool training, const Gpu& gpu,
                            KernelClock& clock);

}  // namespace ns_dist
