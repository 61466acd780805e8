// Fits the kernel model's weights to measured kernels: `ns-dist fit`.
//
// Reads whichever of the tables below lie in some folders (names end in .csv or .csv.gz):
//   bf16_gemm, bf16_gemm_sustained, gemm_layouts, fp8_gemm, bf16_attention, bf16_moe, fp16_layer_ops, attention, norms,
//   fp32_{train,test}_{linear,bmm,elementwise,softmax,layernorm,conv}, and of AMD's GPUs
//   fp32_train_{linear,elementwise,softmax,layernorm}_amd, fp32_test_{linear,bmm}_amd
//   products_burst: what tools/collect measured at full clock
// The same tables give the same bytes on one machine, on any number of threads.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/error_figures.h"
#include "ns_dist/gpu.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

struct KernelFitOptions {
  std::vector<std::filesystem::path> data;       // folders; a table is read from the first that has it
  std::vector<std::string> exclude_gpus;         // ids
  std::vector<std::string> exclude_generations;  // architectures: "hopper"; "blackwell" is -ultra, too
  std::vector<std::string> tables;               // "fp32_train": only tables whose name starts so; empty: all
  std::vector<std::string> exclude_tables;       // "fp32_test": every table whose name starts so
  // Where several frameworks measured one GPU in a table, only the rows of the first framework of this list are read:
  // {"trtllm"}.
  std::vector<std::string> prefer_frameworks;
  std::vector<std::string> predictors;  // only these ("gemm", "gemm_fp32", ...); empty: all that have data
  double effort = 1;                    // number of trees and steps, as a multiple of the default
  unsigned threads = 2;
};

// Errors of one predictor on rows it was not fitted on.
struct KernelFitScore {
  enum class LeftOut { kShape, kGpu, kGeneration };  // nothing of it was fitted on
  std::string predictor, gpu;
  std::string part;  // of its rows; empty: all
  LeftOut left_out = LeftOut::kShape;
  ErrorFigures errors;
  // Share of rows inside the 90 % interval; the interval of a left-out GPU comes from the residuals of the others. 0
  // for a part of the rows.
  double covered = 0;
  double roofline = 0;  // mean error of the best constant share of the roofline on the same rows
};

struct KernelFit {
  std::string weights;  // a safetensors file
  std::string card;     // Markdown: what was fitted on what, and how well
  std::vector<KernelFitScore> scores;
};

// What KernelFitOptions::predictors may name.
std::span<const std::string_view> kernel_predictors();

// Whether `op` is one of the held-out tenth of all shapes. fit_kernels never fits on these, on any GPU and in any mode,
// so their errors are those of a new shape.
bool is_held_out(const Operator& op);

// `progress` gets the share done (0 to 1) and the name of the predictor; it is called from one thread at a time.
// Errors: no table found, a bad row, a GPU that `gpu_of` does not know.
Result<KernelFit> fit_kernels(const KernelFitOptions& options,
                              const std::function<Result<Gpu>(std::string_view id)>& gpu_of,
                              const std::function<void(double, std::string_view)>& progress = {});

}  // namespace ns_dist
