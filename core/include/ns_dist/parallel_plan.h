// How a training step is spread over ranks, and what it trains.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ns_dist/dtype.h"
#include "ns_dist/fields.h"
#include "ns_dist/library.h"

namespace ns_dist {

// What is kept of a layer's activations for the backward pass (Korthikanti et al. 2022, s.5): everything, everything
// but the attention core, or only the layer's input.
enum class Recompute { kNone, kSelective, kFull };
template <>
inline constexpr std::array<std::string_view, 3> kEnumeratorNames<Recompute> = {"none", "selective", "full"};
// How microbatches' weight gradients are summed: fp32 in the epilogue of the weight gradient's product (Megatron-LM's
// gradient_accumulation_fusion), fp32 by a kernel of its own (without that fusion; DeepSpeed's BF16 optimizer), or in
// the weights' own format by a kernel of its own (DeepSpeed's FP16 optimizer).
enum class GradAccumulation { kFused, kFp32, kLow };
template <>
inline constexpr std::array<std::string_view, 3> kEnumeratorNames<GradAccumulation> = {"fused", "fp32", "low"};
enum class ZeroStage { kNone = 0, kOptimizer = 1, kGradients = 2, kParameters = 3 };
template <>
inline constexpr std::array<std::string_view, 4> kEnumeratorNames<ZeroStage> = {"0", "1", "2", "3"};

struct ParallelPlan {
  std::int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  std::int64_t vpp = 1;                  // model chunks of a pipeline stage
  std::string schedule = "1f1b";         // a name of pipeline_schedules()
  std::int64_t first_stage_layers = 0;   // layers of the stage with the embedding; 0: as many as the others
  std::int64_t last_stage_layers = 0;    // layers of the stage with the loss; 0: as many as the others
  bool account_embedding = false;        // the embedding counts as a layer when layers are divided over stages
  bool account_loss = false;             // the loss counts as a layer when layers are divided over stages
  std::string order = "tp-cp-ep-dp-pp";  // which ranks are neighbors: dimensions, innermost first (rank_order)
  ZeroStage zero = ZeroStage::kOptimizer;
  Recompute recompute = Recompute::kNone;
  bool sequence_parallel = false;
  bool flash_attention = true;
  Library attention_library = Library::kDefault;  // of the fused kernel
  Library norm_library = Library::kDefault;
  GradAccumulation grad_accumulation = GradAccumulation::kFused;
  bool blocking_tp = false;           // backward, no tensor-parallel collective runs beside a product
  bool overlap_grad_reduce = false;   // data-parallel gradient reduction beside the last backward passes
  bool overlap_param_gather = false;  // data-parallel parameter gathering beside the first forward passes
  bool overlap_p2p = false;           // a stage goes on computing while it sends
  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;
};

template <class Visitor, OrConst<ParallelPlan> Plan>
void visit_fields(Visitor&& visit, Plan& plan) {
  constexpr InReports kOptional = InReports::kOptional, kUnlessDefault = InReports::kUnlessDefault;
  visit({.name = "plan/tp", .help = "tensor-parallel ranks"}, plan.tp);
  visit({.name = "plan/pp", .help = "pipeline stages"}, plan.pp);
  visit({.name = "plan/dp",
         .help = "data-parallel replicas",
         .default_text = "1; with machine/nodes, as many as fill them"},
        plan.dp);
  visit({.name = "plan/cp", .help = "context-parallel ranks; more than 1 is not supported yet", .values = "1"},
        plan.cp);
  visit({.name = "plan/ep", .help = "expert-parallel ranks, a part of dp"}, plan.ep);
  visit({.name = "plan/vpp", .help = "model chunks of a stage", .default_text = "the fewest of the schedule"},
        plan.vpp);
  visit({.name = "plan/schedule",
         .help = "ns-dist list schedules",
         .values = "NAME",
         .default_text = "1f1b; interleaved with plan/vpp"},
        plan.schedule);
  visit({.name = "plan/first_stage_layers",
         .help = "layers of the stage with the embedding; 0: as many as the others",
         .least = 0,
         .in_reports = kUnlessDefault},
        plan.first_stage_layers);
  visit({.name = "plan/last_stage_layers",
         .help = "layers of the stage with the loss; 0: as many as the others",
         .least = 0,
         .in_reports = kUnlessDefault},
        plan.last_stage_layers);
  visit({.name = "plan/account_embedding",
         .help = "the embedding counts as a layer of its stage",
         .in_reports = kUnlessDefault},
        plan.account_embedding);
  visit({.name = "plan/account_loss", .help = "the loss counts as a layer of its stage", .in_reports = kUnlessDefault},
        plan.account_loss);
  visit({.name = "plan/order",
         .help = "neighboring ranks first: any order, ep beside dp",
         .values = "DIMS",
         .in_reports = kOptional},
        plan.order);
  visit({.name = "plan/zero",
         .help = "1: replicas share the optimizer state; 2 and 3 are not supported yet",
         .values = "0|1"},
        plan.zero);
  visit({.name = "plan/recompute", .help = "activations that the backward pass computes again"}, plan.recompute);
  visit({.name = "plan/sequence_parallel",
         .help = "tensor-parallel ranks share what lies between products",
         .default_text = "on with plan/tp"},
        plan.sequence_parallel);
  visit({.name = "plan/flash_attention", .help = "one fused kernel that keeps no scores"}, plan.flash_attention);
  visit({.name = "plan/attention_library",
         .help = "whose fused attention runs",
         .default_text = "cudnn on Hopper and Blackwell, else flash-2",
         .names = attention_libraries(),
         .in_reports = kUnlessDefault},
        plan.attention_library);
  visit({.name = "plan/norm_library",
         .help = "whose normalization kernels run",
         .default_text = "fused ones: cudnn",
         .names = normalization_libraries(),
         .in_reports = kUnlessDefault},
        plan.norm_library);
  visit({.name = "plan/grad_accumulation",
         .help = "fused into the products, or a kernel of its own in fp32 or low precision",
         .in_reports = kUnlessDefault},
        plan.grad_accumulation);
  visit({.name = "plan/blocking_tp",
         .help = "backward, tensor-parallel collectives wait for products and products for them",
         .in_reports = kUnlessDefault},
        plan.blocking_tp);
  visit({.name = "plan/overlap_grad_reduce", .help = "gradients are reduced beside the last backward passes"},
        plan.overlap_grad_reduce);
  visit({.name = "plan/overlap_param_gather", .help = "parameters are gathered beside the first forward passes"},
        plan.overlap_param_gather);
  visit({.name = "plan/overlap_p2p",
         .help = "a stage goes on computing while it sends",
         .default_text = "as the schedule does"},
        plan.overlap_p2p);
}

struct Training {
  std::int64_t global_batch = 1536, micro_batch = 1;  // sequences
  std::int64_t sequence = 2048;                       // tokens
  DType dtype = DType::kBf16;
  friend bool operator==(const Training&, const Training&) = default;
};

template <class Visitor, OrConst<Training> T>
void visit_fields(Visitor&& visit, T& training) {
  visit({.name = "training/global_batch", .help = "sequences a step"}, training.global_batch);
  visit({.name = "training/micro_batch", .help = "sequences a pass"}, training.micro_batch);
  visit({.name = "training/sequence", .help = "tokens a sequence", .default_text = "the model's own", .flag = "--seq"},
        training.sequence);
  visit({.name = "training/dtype",
         .help = "number format of products; fp8 is not supported yet",
         .values = "fp32|tf32|fp16|bf16",
         .names = names_of<DType>().subspan(1, 5)},
        training.dtype);
}

}  // namespace ns_dist
