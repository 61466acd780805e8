// How far off are our forecasts of kernels that others measured?
//
// Reads a folder laid out as
//   kernels/*.csv[.gz]              single kernels, see kernel_table.h; latency_ms is measured
//   kernels_training/*.csv[.gz]     kernels of training
//   products_burst.csv, products_sustained.csv, streams.csv, eager.csv, fp32_burst.csv
//                                   our own measurements, in the folder itself
// If a file is missing, its section is left out.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "ns_dist/gpu.h"
#include "ns_dist/result.h"
#include "ns_dist/suite_report.h"

namespace ns_dist {

struct KernelSuiteOptions {
  std::filesystem::path data;
  std::string weights{};  // a safetensors file's bytes; empty: those compiled in
  unsigned threads = 1;
  // Also fits every predictor again, with the settings of the shipped weights, without each GPU and each generation in
  // turn, and adds the errors on what was left out. Takes minutes on two cores.
  bool refit = false;
};

// `progress` is told the share done and what is being read. Errors: a folder without any of these files; a file whose
// columns are missing or that cannot be read. A bad row is an entry of `mistakes`.
Result<SuiteReport> check_kernels(const KernelSuiteOptions& options,
                                  const std::function<Result<Gpu>(std::string_view id)>& gpu_of,
                                  const std::function<void(double, std::string_view)>& progress = {});

}  // namespace ns_dist
