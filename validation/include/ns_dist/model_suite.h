// How far off are our forecasts of whole FP32 models that others measured?
#pragma once

#include <filesystem>
#include <functional>

#include "ns_dist/catalog.h"
#include "ns_dist/result.h"
#include "ns_dist/suite_report.h"

namespace ns_dist {

// Forecasts each row as `ns-dist simulate` does: a model, a GPU, a batch, the passes of the step, and the framework
// that ran it. Reads a folder laid out as
//   models_fp32/model_configs.json     Hugging Face configurations by model
//   models_fp32/labels.csv             one GPU: gpu, graph, model, phase (inf: a forward pass; train: forward and
//                                      backward passes without an update, memory given back before each step), seq,
//                                      batch, option ("" eager PyTorch, "fusion" torch.compile), e2e_ms measured,
//                                      empty where it ran out of memory
//   models_fp32/graph_ops.csv[.gz]     operators of each graph (graph, op, n): one without a linear layer as wide
//                                      as the vocabulary ends in a classifier of sequences
//   models_fp32/distributed.csv        several GPUs of a node, Megatron-LM: gpu, model, seq, global_batch,
//                                      per_rank_batch, dp, tp, pp, e2e_ms
// The last two may be missing. The optional columns neusight_*, roofline_*, habitat_* and micro_* hold forecasts of
// others for the same rows; they are compared, too. Models without a configuration that we can read are listed.
// `progress` is told the share that is done. Errors: a folder without the first two files, or a file that cannot be
// read. A bad row is an entry of `mistakes`.
Result<SuiteReport> check_models(const std::filesystem::path& folder, const Catalog& catalog,
                                 const std::function<void(double)>& progress = {});

}  // namespace ns_dist
