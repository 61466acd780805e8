// The tables of single kernels.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "error_table.h"
#include "ns_dist/kernel_suite.h"

namespace ns_dist {

using GpuOf = std::function<Result<Gpu>(std::string_view id)>;
using Tell = std::function<void(double, std::string_view)>;

// GPUs whose rows the FP32 weights were fitted on; the others are unseen.
bool fp32_training_gpu(std::string_view id);

// Adds the tables of the files that are there to `report`, and the rows that were judged. Returns how many files.
Result<std::size_t> add_kernel_tables(SuiteReport& report, const KernelSuiteOptions& options, const GpuOf& gpu_of,
                                      const Tell& tell);

}  // namespace ns_dist
