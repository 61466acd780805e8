// The sections of the suite, each as Markdown. What is missing leaves an empty text.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "error_table.h"
#include "ns_dist/kernel_suite.h"

namespace ns_dist {

using GpuOf = std::function<Result<Gpu>(std::string_view id)>;
using Tell = std::function<void(double, std::string_view)>;

struct Sections {
  const KernelSuiteOptions& options;
  const GpuOf& gpu_of;
  std::vector<Error>& mistakes;
  std::size_t rows = 0;    // judged
  std::size_t tables = 0;  // files found
};

// GPUs whose rows the FP32 weights were fitted on; the others are unseen.
bool fp32_training_gpu(std::string_view id);

Result<std::string> kernel_sections(Sections& sections, const Tell& tell);

}  // namespace ns_dist
