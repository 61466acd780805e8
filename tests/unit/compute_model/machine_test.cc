#include "machine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "compute_model_gpus.h"

namespace ns_dist {
namespace {

using namespace units;

TEST(Machine, KnowsGddrInEitherCase) {
  const std::vector<Gpu> gpus = test_gpus();
  const Gpu l4 = *std::find_if(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return gpu.id == "l4"; });
  Gpu lower = l4, hbm = l4;
  lower.memory_type = "gddr6", hbm.memory_type = "HBM2";
  const Machine upper = *make_machine(l4, Mode::kBurst), same = *make_machine(lower, Mode::kBurst),
                other = *make_machine(hbm, Mode::kBurst);
  EXPECT_TRUE(upper.gddr && same.gddr);
  EXPECT_FALSE(other.gddr);
  EXPECT_EQ(same.ceiling(DType::kBf16), upper.ceiling(DType::kBf16));
  EXPECT_EQ(same.achieved_bandwidth, upper.achieved_bandwidth);
  EXPECT_EQ(same.byte_joules, upper.byte_joules);
  EXPECT_GT(upper.byte_joules, other.byte_joules);
}

// 16 BF16 operations for one of FP32 (H100, A100), whatever narrower formats reach.
TEST(Machine, AnUnknownVectorPeakFollowsHalfPrecision) {
  Gpu gpu = h100();
  gpu.vector[DType::kFp32] = FlopsPerSecond();
  const Machine machine = *make_machine(gpu, Mode::kBurst);
  EXPECT_GT(machine.peak(DType::kFp8), machine.peak(DType::kBf16));
  EXPECT_DOUBLE_EQ(machine.vector_peak, machine.peak(DType::kBf16) / 16);
}

}  // namespace
}  // namespace ns_dist
