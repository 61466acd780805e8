// What every answer for people says of a report: the question in words, the parts of the step.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "ns_dist/report.h"

namespace ns_dist::cli {

// One JSON object. Texts for people name flags, as everywhere on the command line.
std::string report_json(Report report);

// "671 B parameters, 37.6 B of them for each token"; `predictions`: layers that predict further tokens are trained.
std::string parameters_text(const Model& model, bool predictions);
std::string work_text(const Report& report);          // "GPT-3 175B on 1,024 x NVIDIA H100 SXM5 80GB"
std::string cluster_text(const Cluster& cluster);     // "NVIDIA DGX H100: 8 GPUs by NVLink 4, 128 nodes by ..."
std::string degrees_text(const ParallelPlan& plan);   // "tp 8, pp 16, dp 8"
std::string batch_text(const Training& training);     // "global batch 1,536 of 2,048 tokens, micro-batch 1, bf16"
std::string settings_text(const ParallelPlan& plan);  // "1f1b schedule, ZeRO 1, no recomputation, ..."

// "367,756", "4.22": tokens a second.
std::string rate_text(double tokens_per_second);
// "memory bandwidth of the GPU x1.5"
std::string part_text(const Sensitivity& sensitivity);
// "-3.210 %", of the step
std::string change_text(const Sensitivity& sensitivity);
std::string range_text(const Sensitivity& sensitivity);  // " (-4.1 to -2.5)", in %; "" without an interval
// "memory bandwidth of the GPU x1.5      20.1 s  -3.210 %"
std::string sensitivity_text(const Sensitivity& sensitivity);
// "-303.2 ms, -3.5 % (90 % interval -12.3 to +5.2 %)"
std::string difference_text(const StepDifference& difference);
// The largest parts of a difference: "compute -258 ms, pipeline bubble +188.2 ms". Nothing where all are small.
std::string difference_parts_text(const StepDifference& difference);
// What an improvement does to the step, and the step then: "-6.6 % (-30.5 to +2.5)"; of a limit "at most -6.6 %".
std::string saving_text(const Improvement& improvement, Seconds step);
// Whether the interval of an improvement has steps that are longer.
bool is_unsure(const Improvement& improvement);
// The largest parts that are added to the plain sum of kernels: "unequal stages 3.7 %, embedding and loss 3.6 %".
std::string additions_text(const Report& report);

// Long contexts: attention that a causal mask hides is a large part of the model's operations.
bool masks_much(const Report& report);
bool has_hfu(const Report& report);            // another than MFU
double peak_teraflops(const Report& report);   // of products, of a GPU
std::string rates_text(const Report& report);  // TFLOP/s of the model on a GPU: "388", or "430 and 729", as MFU
// "MFU 39.2 % (38.7 % with causal attention), 388 of 989 TFLOP/s on each GPU"
std::string utilization_text(const Report& report);
// "57.4 %", or "51.0 % with causal attention, 57.4 % with full"
std::string mfu_text(const Report& report);

// The improvements that people are told. Limits of a plan that cannot run are none of them.
std::vector<Improvement> told_improvements(const Report& report);

// What to doubt; and what is told beside the answer, in one line.
std::vector<Warning> told_warnings(const Report& report);
std::string minor_text(const Report& report);

// Of a plan that does not fit: "does not fit", or what there is no room for beside its tensors.
std::string unfit_text(const Report& report);
// Of the remedy that the report has: "70.1 GiB, 5.3 s", "on 16 GPUs, 63.7 GiB, ...", "..., tight: 81.2 GiB in
// nvidia-smi".
std::string remedy_text(const Report& report);

std::string kind_text(ActivationKind kind);  // "attention core"
// Passes of which a stage keeps something at its peak: "4 passes (1 until the weight gradient)".
std::string live_text(const StageMemoryDetail& detail);
// When a stage holds the most: "behind F3, with 4 passes live". Nothing where nothing is kept.
std::string peak_text(const Report& report, std::size_t stage);

// Longest first.
std::array<BreakdownPart, kBreakdownParts.size()> longest_parts(const Breakdown& breakdown);

}  // namespace ns_dist::cli
