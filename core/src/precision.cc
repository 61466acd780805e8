#include "ns_dist/precision.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace ns_dist {
namespace {

// Generations of a vendor's GPUs that run a format: from `first` on, before `end`. NVIDIA's are compute capabilities,
// AMD's the number of CDNA.
struct Support {
  Precision format;
  std::string_view vendor;
  double first, end;
  std::string_view otherwise;
};
constexpr double kNone = std::numeric_limits<double>::infinity(), kAll = kNone;

// NVIDIA: TransformerEngine 2, pytorch/quantization.py (check_fp8_block_scaling_support, check_mxfp8_support,
// check_nvfp4_support). AMD: Triton, tutorial "Block Scaled Matrix Multiplication" (CDNA4's matrix cores run mxfp4 and
// mxfp8, whose factors E8M0 hold for 32 elements; nvfp4, with E4M3 for 16, runs on NVIDIA's GPUs alone).
constexpr std::array kSupport = {
    Support{Precision::kFp8Block, "nvidia", 9.0, kAll, "TransformerEngine has it from compute capability 9.0 on"},
    Support{Precision::kMxFp8, "nvidia", 10.0, 12.0,
            "TransformerEngine has it from compute capability 10.0 on, and refuses 12.0"},
    Support{Precision::kNvFp4, "nvidia", 10.0, kAll, "TransformerEngine has it from compute capability 10.0 on"},
    Support{Precision::kMxFp8, "amd", 4, kAll, "products with factors of 32 elements came with CDNA4"},
    Support{Precision::kNvFp4, "amd", kNone, kAll, "AMD's 4-bit products have factors of 32 elements (MXFP4), not 16"},
};

// Zero where it cannot be read.
double generation_number(const Gpu& gpu) {
  std::string_view text = gpu.compute_capability;
  if (gpu.vendor == "amd")
    text = std::string_view(gpu.architecture).substr(std::min<std::size_t>(4, gpu.architecture.size()));
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

std::string_view reason_against(const Gpu& gpu, Precision precision) {
  const auto row = std::find_if(kSupport.begin(), kSupport.end(), [&](const Support& each) {
    return each.format == precision && each.vendor == gpu.vendor;
  });
  const double generation = generation_number(gpu);
  if (row == kSupport.end() || !(generation > 0)) return "";
  return generation >= row->first && generation < row->end ? "" : row->otherwise;
}

}  // namespace ns_dist
