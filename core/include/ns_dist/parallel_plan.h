// How a training step is spread over ranks, and what it trains.
#pragma once

#include <cstdint>
#include <string>

#include "ns_dist/dtype.h"

namespace ns_dist {

// What is kept of a layer's activations for the backward pass (Korthikanti et al. 2022, s.5): everything, everything
// but the attention core, or only the layer's input.
enum class Recompute { kNone, kSelective, kFull };
// How microbatches' weight gradients are summed: fp32 in the epilogue of the weight gradient's product (Megatron-LM's
// gradient_accumulation_fusion), fp32 by a kernel of its own (without that fusion; DeepSpeed's BF16 optimizer), or in
// the weights' own format by a kernel of its own (DeepSpeed's FP16 optimizer).
enum class GradAccumulation { kFused, kFp32, kLow };
enum class ZeroStage { kNone = 0, kOptimizer = 1, kGradients = 2, kParameters = 3 };

struct ParallelPlan {
  std::int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  std::int64_t vpp = 1;                  // model chunks of a pipeline stage
  std::string schedule = "1f1b";         // a name of pipeline_schedules()
  std::int64_t first_stage_layers = 0;   // layers of the stage with the embedding; 0: as many as the others
  std::int64_t last_stage_layers = 0;    // layers of the stage with the loss; 0: as many as the others
  bool account_embedding = false;        // the embedding counts as a layer when layers are divided over stages
  bool account_loss = false;             // the loss counts as a layer when layers are divided over stages
  std::string order = "tp-cp-ep-dp-pp";  // which ranks are neighbours: dimensions, innermost first (rank_order)
  ZeroStage zero = ZeroStage::kOptimizer;
  Recompute recompute = Recompute::kNone;
  bool sequence_parallel = false;
  bool flash_attention = true;
  GradAccumulation grad_accumulation = GradAccumulation::kFused;
  bool blocking_tp = false;           // backward, no tensor-parallel collective runs beside a product
  bool overlap_grad_reduce = false;   // data-parallel gradient reduction beside the last backward passes
  bool overlap_param_gather = false;  // data-parallel parameter gathering beside the first forward passes
  bool overlap_p2p = false;           // a stage goes on computing while it sends
  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;
};

struct Training {
  std::int64_t global_batch = 1536, micro_batch = 1;  // sequences
  std::int64_t sequence = 2048;                       // tokens
  DType dtype = DType::kBf16;
  friend bool operator==(const Training&, const Training&) = default;
};

}  // namespace ns_dist
