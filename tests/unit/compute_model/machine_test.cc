#include "machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/gpus.h"

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

// The best of many measured products of H100 reached 794 TFLOP/s, 1.045 times the ceiling. Where voltage follows
// frequency, power grows with the cube of the rate.
TEST(Machine, PowerSetsACeilingForTensorUnits) {
  Gpu gpu = h100();
  gpu.boost_clock = 1980 * MHz;
  const double ceiling = make_machine(gpu, Mode::kBurst)->ceiling(DType::kBf16);
  EXPECT_NEAR(ceiling, 794e12 / 1.045, 0.01 * ceiling);
  gpu.board_power = gpu.board_power / 8;
  EXPECT_NEAR(make_machine(gpu, Mode::kBurst)->ceiling(DType::kBf16) / ceiling, 0.5, 1e-9);
  gpu.board_power = 1e6 * W;
  EXPECT_EQ(make_machine(gpu, Mode::kBurst)->ceiling(DType::kBf16), 989.4e12);
}

// A board with GDDR at 4 nm at the least voltage: 1.7 pJ a FLOP up to L40S's 350 W. Of more power the fixed 32 W are
// spent once, so 600 W do 568 / 318 of what 350 do; 0 to 65 W are fixed and the voltage may rise from 0.65 of the boost
// clock on, which is the doubt. Boards with HBM and of other processes have none.
TEST(Machine, BoardsWithGddrHaveALeastVoltage) {
  Gpu gpu = make_test_gpu("gddr", "blackwell", 4, 188, 1024 * 188 * 2.43e-3, 0, 100, "GDDR7", 1600, 128, 350);
  gpu.boost_clock = 2430 * MHz;
  const Machine limited = *make_machine(gpu, Mode::kBurst);
  EXPECT_NEAR(limited.ceiling(DType::kBf16), 350 / 1.7e-12, 1e9);
  EXPECT_EQ(limited.ceiling_doubt, 0);
  gpu.board_power = 600 * W;
  const Machine machine = *make_machine(gpu, Mode::kBurst);
  EXPECT_NEAR(machine.ceiling(DType::kBf16), 568 / 318.0 * 350 / 1.7e-12, 1e9);
  const double units = 1024 * 188, least = 0.65 * 2.43e9, linear = 600 / (units * 1.7e-12);
  const double fewest = units * std::cbrt(linear * least * least), most = 535 / 285.0 * 350 / 1.7e-12;
  EXPECT_NEAR(machine.ceiling_doubt, std::log(most / fewest) / 2, 1e-9);
  gpu.process_nm = 8;
  EXPECT_EQ(make_machine(gpu, Mode::kBurst)->ceiling_doubt, 0);
  gpu.process_nm = 4, gpu.memory_type = "HBM3";
  EXPECT_EQ(make_machine(gpu, Mode::kBurst)->ceiling_doubt, 0);
}

// FLOP a clock of an SM: 4,096 of H100, whose peak is stated at 1,830 MHz. A planned GPU may have anything; what its
// power allows grows with its peak, and never by a step.
TEST(Machine, ThePowersCeilingFollowsThePeakWithoutSteps) {
  Gpu gpu = h100();
  gpu.boost_clock = 1980 * MHz;
  const auto ceiling = [&](double factor) {
    Gpu faster = gpu;
    faster.tensor[DType::kBf16] *= factor;
    return make_machine(faster, Mode::kBurst)->ceiling(DType::kBf16);
  };
  EXPECT_EQ(ceiling(1), ceiling(1.1));
  EXPECT_NEAR(ceiling(2.1) / ceiling(1), std::cbrt(4.0), 1e-9);
  for (double factor = 1; factor < 4; factor *= 1.01) {
    const double more = ceiling(1.01 * factor) / ceiling(factor);
    EXPECT_GE(more, 1 - 1e-12) << factor;
    EXPECT_LE(more, 1.02) << factor;
  }
}

// At the boost clock the voltage is 8 % above its least: a product costs 1.08^2 = 1.1664 times the least energy, so
// that 100 W pay for 85.7 J a second at the least voltage.
TEST(Machine, PowerGrowsWithTheSquareOfVoltage) {
  Machine machine = *make_machine(a100(), Mode::kBurst);
  machine.watts = 100, machine.idle_watts = 0, machine.flop_joules = 1;
  const auto clock = [&](double joules) { return machine.powered(1, 0, joules, 0, 1, 1e9).clock; };
  EXPECT_EQ(clock(85), 1);
  EXPECT_LT(clock(87), 1);
  EXPECT_GT(clock(87), 0.9);
}

}  // namespace
}  // namespace ns_dist
