// How far off are forecasts of training steps that others measured?
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/names.h"
#include "ns_dist/published_run.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/suite_report.h"
#include "ns_dist/units.h"

namespace ns_dist {

struct RunCheck {
  std::string publication, id, gpu;
  std::int64_t sequence = 0;  // tokens of one
  Seconds measured, forecast, low, high;
  // The step under a constant utilization: the step at the mean measured model FLOP/s utilization of all runs checked
  // on the same GPU and number format (leaving none out, which favors it).
  Seconds baseline;
  std::string unsupported;  // why there is no forecast; empty when there is one
  double error() const { return forecast / measured - 1; }
  double baseline_error() const { return baseline / measured - 1; }
  bool inside() const { return low <= measured && measured <= high; }  // of the 90 % interval
};

// Forecasts every run. Errors: a model or cluster that the catalog does not have. A run that cannot be planned is
// marked with the reason.
Result<std::vector<RunCheck>> check_runs(std::span<const PublishedRuns> publications, const Catalog& catalog);

// The checks as tables, worst first, and the errors of ours and of the baseline; by publication, if there are several.
// A run without a forecast is a mistake.
SuiteReport report_of(std::span<const RunCheck> checks);

// A collection of published runs in one JSON file, which is not part of this project. Forecasts every wanted row of
// `file`: an array of objects
//
//   id, config_key, source{title}, recommended,
//   model{name, layers, hidden, heads, kv_heads, head_dim, ffn_hidden, gated_mlp, vocab, seq, tied_embeddings, and for
//         experts n_experts, topk, moe_ffn_hidden, shared_experts, dense_layers, and for latent attention attention,
//         q_lora_rank, kv_lora_rank, qk_rope_head_dim},
//   notes (of which a framework's name, "dispatcher=deepep", "pad-to-capacity CF=1.0", "no TP overlap", "no grad-reduce
//   overlap", "CPU-offloaded AdamW", "torch.compile" and "MTP" are read),
//   n_gpus, gpus_per_node, micro_batch, global_batch, flash_attention, precision (of which "fp32 grad accumulation" is
//   read), recompute (of which "modules:layernorm,moe_act" is read; otherwise norm's holds),
//   parallel{tp, pp, dp, cp, ep, vpp, sp, zero_stage, distributed_optimizer, fsdp, and as in configs/runs/
//            cp_comm, grad_accumulation, blocking_tp, overlap_grad_reduce, overlap_param_gather, overlap_p2p},
//   norm{gpu, dtype, schedule, recompute, inter_gbs_per_gpu, step_time_s},
//   peer_prediction{tool, iteration_time_s, memory_gib} (optional): what another tool forecasts of this run
//   measured{memory_gib_per_gpu or memory_gb_per_gpu, memory_kind, and where norm has no step_time_s tflops_per_gpu and
//            tflops_kind: "model" or "model (...)", which counts attention in full, or "model (causal ...)"}
//
// or a sweep of one publication: an object with source, gpu, gpus_per_node, common{vocab, gated_mlp, recompute,
// flash_attention, precision, schedule, framework} and rows[{n_gpus, gbs, mbs, hidden, heads, layers, seq, tp, dp, pp,
// iteration_time_s}]; where null is a key that is not there and other keys are ignored. Rows of one config_key have one
// vote: the mean of their measurements against one forecast. The answer has the worst configuration first, errors by
// publication, the same for a constant utilization of each GPU and number format (fitted on these very rows), and the
// 5th and 95th percentile of measured over forecast step with one vote for each publication: what the step's interval
// is made of. `progress`, if any, gets the share that is done. Errors: a file that cannot be read, or is no JSON array.
//
// A row may lack micro_batch (null), or have a text in parallel.vpp ("unstated"): its authors chose these, so the
// forecast takes the middle one of those that it cannot tell from the fastest. Where recompute is none of none,
// selective and full, the framework's holds.
enum class RunRows { kRecommended, kOther, kAll };
template <>
inline constexpr auto kEnumeratorNames<RunRows> = std::to_array<std::string_view>({"recommended", "other", "all"});

struct RunSuiteOptions {
  std::vector<std::string> titles;  // only publications whose title holds one of these; empty: all
  ScenarioSpec with;                // set on each row, after its own fields: calibrations of the machine that ran them
  // Also finds the constants of training (training_clock.h) and the launch cost anew without each publication and
  // forecasts it with them, in minutes.
  bool refit = false;
  RunRows rows = RunRows::kRecommended;
};
Result<SuiteReport> check_run_collection(const std::filesystem::path& file, const Catalog& catalog,
                                         const RunSuiteOptions& options = {},
                                         const std::function<void(double)>& progress = {});

// Compares published plans of such a file with the best plan that a search finds for the same work (model, GPUs, batch,
// number format) under the same framework, both by forecast. Of each work it takes the plan that was measured to be
// fastest: the one that its authors would choose. `titles`: only publications whose title holds one of these; empty:
// all. A hundred works take minutes. Errors: as above.
Result<SuiteReport> check_plans(const std::filesystem::path& file, const Catalog& catalog,
                                std::span<const std::string> titles = {}, unsigned threads = 1,
                                const std::function<void(double)>& progress = {});

}  // namespace ns_dist
