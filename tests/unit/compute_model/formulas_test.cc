// The formulas of the analytic model by numbers worked by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "families.h"
#include "kernel_features.h"
#include "ns_dist/compute_model.h"
#include "support/gpus.h"

namespace ns_dist {
namespace {

using namespace units;

// 100 SMs of 1 TFLOP/s in half precision, and bandwidth beyond what the products here ask for.
Gpu hundred_sms() { return make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, "HBM2", 1e6, 40, 0); }

struct Answer {
  Forecast forecast;
  std::map<std::string, double> steps;  // those that are numbers
};
Answer answer(const Gpu& gpu, const Operator& op, Mode mode = Mode::kBurst) {
  const auto model = make_compute_model(gpu, {.mode = mode, .analytic = true});
  EXPECT_TRUE(model);
  const auto explanation = (*model)->explain(op);
  EXPECT_TRUE(explanation);
  Answer out{explanation->forecast, {}};
  for (const ExplanationStep& step : explanation->steps) {
    char* end = nullptr;
    const double value = std::strtod(step.value.c_str(), &end);
    if (*end == '\0') out.steps[step.name] = value;
  }
  return out;
}
double seconds(const Gpu& gpu, const Operator& op, Mode mode = Mode::kBurst) {
  return answer(gpu, op, mode).forecast.latency / s;
}
Operator product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {Gemm{.m = m, .n = n, .k = k}, DType::kFp16};
}

// FlashAttention-2 runs matrix instructions of Ampere on later GPUs, at so many a clock and SM: exponentials that are
// twice as fast do not make it faster.
TEST(Formulas, FlashAttention2FollowsClockAndUnits) {
  Gpu gpu = hundred_sms();
  gpu.architecture = "blackwell";
  gpu.tensor[DType::kFp16] = 10'000 * TFLOP / s;  // products are no limit
  Gpu ultra = gpu;
  ultra.architecture = "blackwell-ultra";
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Attention attention{1, 32, 8, 8192, 8192, 128, 128};
    attention.pass = pass;
    attention.library = Library::kFlash2;
    const Operator op{attention, DType::kFp16};
    EXPECT_DOUBLE_EQ(seconds(ultra, op), seconds(gpu, op));
    attention.library = Library::kCudnn;
    const Operator cudnn{attention, DType::kFp16};
    EXPECT_LE(seconds(ultra, cudnn), seconds(gpu, cudnn));
  }
}

// Tiles of `steps` steps of k that run one after the other, and `flop` at what power allows (the nominal peak here, of
// which a burst reaches 1.07), rounded where they meet.
double tiles_and_power(double steps, double flop_a_step, double flop, double share = 1.07) {
  const double tiles = steps * flop_a_step / 1e12, power = flop / (share * 1e14);
  return std::pow(std::pow(tiles, 6) + std::pow(power, 6), 1.0 / 6);
}

// A tile's first loads and last stores take as long as 192 steps of k.
TEST(Formulas, TilesHaveARamp) {
  const Gpu gpu = hundred_sms();
  for (const std::int64_t k : {1, 64, 192, 8192}) {
    const auto depth = static_cast<double>(k);
    const double tile = 2 * 256.0 * 128;
    EXPECT_NEAR(answer(gpu, product(2560, 1280, k)).steps.at("compute_s") /
                    tiles_and_power(depth + 192, tile, 100 * tile * depth),
                1, 1e-5);
  }
}

// 10 x 10 tiles of 256 x 128 are one wave of 100 SMs. An eleventh row of them makes 220 tiles of 128 x 128, at 0.9 of
// the rate: three whole waves, or 2.2 of a persistent kernel, which splits what is left over.
TEST(Formulas, TilesComeInWaves) {
  Gpu gpu = hundred_sms();
  const double k = 1 << 16, tile = 2 * 256.0 * 128, ramp = 192;
  const auto compute = [&](std::int64_t m) { return answer(gpu, product(m, 1280, 1 << 16)).steps.at("compute_s"); };
  EXPECT_NEAR(compute(2560) / tiles_and_power(k + ramp, tile, 100 * tile * k), 1, 1e-5);
  EXPECT_NEAR(compute(2816) / tiles_and_power(3 * (k + ramp), 0.5 / 0.9 * tile, 110 * tile * k), 1, 1e-5);
  EXPECT_EQ(answer(gpu, product(2816, 1280, 1 << 16)).steps.at("waves"), 3);
  gpu.compute_capability = "9.0";
  EXPECT_NEAR(compute(2816) / tiles_and_power(1.1 * (k + ramp), tile, 110 * tile * k), 1, 1e-5);
}

// FlashAttention's papers: backward at 0.8 of the forward rate, of five products instead of two.
TEST(Formulas, AttentionGoesBackwardAtFourFifthsOfItsRate) {
  const Gpu gpu = test_gpus()[2];
  ASSERT_EQ(gpu.architecture, "volta");
  const auto steps = [&](Pass pass) {
    return answer(gpu, {Attention{.batch = 8,
                                  .heads = 16,
                                  .query_length = 4096,
                                  .key_length = 4096,
                                  .head_dim = 128,
                                  .value_dim = 128,
                                  .pass = pass},
                        DType::kFp16})
        .steps;
  };
  const auto forward = steps(Pass::kForward), backward = steps(Pass::kBackward);
  EXPECT_DOUBLE_EQ(forward.at("share_of_peak"), 0.5);
  EXPECT_DOUBLE_EQ(backward.at("share_of_peak"), 0.4);
  EXPECT_NEAR(backward.at("compute_s") / forward.at("compute_s"), 2.5 / 0.8, 1e-4);
}

// A kernel alone needs 2 us; one in a stream of others, 1 us more.
TEST(Formulas, KernelsInAStreamLeaveAGap) {
  const Operator nothing{Elementwise{.elements = 1, .inputs = 1, .outputs = 1}, DType::kFp16};
  EXPECT_NEAR(seconds(hundred_sms(), nothing, Mode::kBurst), 2e-6, 1e-8);
  EXPECT_NEAR(seconds(hundred_sms(), nothing, Mode::kSustained), 3e-6, 1e-8);
}

// A thread that finds the address of each element by itself takes 0.55 clocks of an SM for it, beside the time of the
// memory (root of the sum of squares). Kernels that are known by name take their own: 1.9 to add to a sum.
TEST(Formulas, ElementsOneByOneTakeClocks) {
  const auto steps = [](Elementwise what) {
    what.elements = 1'000'000;
    return answer(hundred_sms(), {std::move(what), DType::kFp16}).steps;
  };
  const double clocks = 1e6 / 100 / 1.5e9;  // one for each element, on 100 SMs
  EXPECT_EQ(steps({.name = "multiply", .inputs = 1}).at("compute_s"),
            steps({.name = "scale", .inputs = 1}).at("compute_s"));
  EXPECT_NEAR(steps({.name = "multiply", .inputs = 1, .by_element = true}).at("compute_s"), 0.55 * clocks, 1e-11);
  EXPECT_NEAR(steps({.name = "index_add"}).at("compute_s"), 1.9 * clocks, 1e-10);
  const Operator one{Elementwise{.elements = 1'000'000, .inputs = 1, .by_element = true}, DType::kFp16};
  const auto [forecast, parts] = answer(hundred_sms(), one);
  EXPECT_NEAR(forecast.latency / s, parts.at("launch_s") + std::hypot(parts.at("compute_s"), parts.at("memory_s")),
              1e-9);
}

// Dense products for long, as steps have them, run at a lower clock than one alone: power allows 0.96 of a burst's
// rate, and 0.89 to persistent kernels.
TEST(Formulas, LongRunsAreNotBursts) {
  Gpu gpu = hundred_sms();
  const double k = 8192, tile = 2 * 256.0 * 128;
  for (const auto& [capability, share] : {std::pair("8.0", 1.03), std::pair("9.0", 0.95)}) {
    gpu.compute_capability = capability;
    EXPECT_NEAR(answer(gpu, product(25600, 12800, 8192), Mode::kSustained).steps.at("compute_s") /
                    tiles_and_power(100 * (k + 192), tile, 1e4 * tile * k, share),
                1, 1e-5);
  }
}

// Each expert costs 3 us for its first and last tiles, and 8.6 us at least, which the host needs to launch it. In one
// kernel, all of them are one batch.
TEST(Formulas, ExpertsCostByTheirNumber) {
  const Gpu gpu = hundred_sms();
  const auto grouped = [&](std::int64_t experts, std::int64_t rows, std::int64_t n, std::int64_t k) {
    return seconds(gpu, {GroupedGemm{.experts = experts, .rows = rows, .n = n, .k = k}, DType::kFp16});
  };
  EXPECT_NEAR(grouped(64, 64, 64, 64), 64 * 8.6e-6, 1e-9);
  EXPECT_NEAR(grouped(128, 128, 64, 64), 128 * 8.6e-6, 1e-9);
  const double batched =
      seconds(gpu, {Gemm{.batch = 16, .m = 4096, .n = 4096, .k = 4096, .layout = GemmLayout::kNT}, DType::kFp16});
  EXPECT_NEAR(grouped(16, 16 * 4096, 4096, 4096) - batched, 16 * 3e-6, 1e-8);
  const GroupedGemm together{.experts = 16, .rows = 16 * 4096, .n = 4096, .k = 4096, .one_kernel = true};
  EXPECT_NEAR(seconds(gpu, {together, DType::kFp16}), batched, 1e-8);
}

TEST(Formulas, BoundsAreNamedByWhatBinds) {
  const Gpu gpu = a100();
  const auto bound = [&](const Operator& op) { return answer(gpu, op).forecast.bound; };
  EXPECT_EQ(bound(product(8192, 8192, 8192)), Bound::kCompute);
  EXPECT_EQ(bound(product(8, 16384, 16384)), Bound::kMemory);
  EXPECT_EQ(bound(product(16, 16, 16)), Bound::kLaunch);
  EXPECT_EQ(bound({Elementwise{.elements = 1'000'000'000, .inputs = 1, .outputs = 1}, DType::kFp16}), Bound::kMemory);
  EXPECT_EQ(bound({Elementwise{.elements = 1, .inputs = 1, .outputs = 1}, DType::kFp16}), Bound::kLaunch);
}

// 65,536 products deep, a single tile of 64 x 64 (0.51 of the rate) becomes 100 parts for 100 SMs; 1,024 deep, four
// tiles of 64 x 16 (0.19) are split in eight, as each part keeps 128. 6,300 clocks add up the parts.
TEST(Formulas, KIsSplitOverIdleSms) {
  const auto compute = [](std::int64_t k) { return answer(hundred_sms(), product(64, 64, k)).steps.at("compute_s"); };
  const double sum = 6300 / 1.5e9;
  EXPECT_NEAR(compute(65536) / (2 * 64.0 * 64 * (655.36 + 192) / 0.51e12 + sum), 1, 1e-3);
  EXPECT_NEAR(compute(1024) / (2 * 64.0 * 16 * (128 + 192) / 0.19e12 + sum), 1, 1e-3);
}

// Where adding up takes longer than half of the product, no part is split off: at ten times the rate 1,024 deep, no
// more than 1,023 deep.
TEST(Formulas, KIsSplitWhereItPays) {
  const Gpu gpu = make_test_gpu("fast", "unheard-of", 7, 100, 1000, 0, 10, "HBM2", 1000, 40, 0);
  const auto compute = [&](std::int64_t k) { return answer(gpu, product(64, 64, k)).steps.at("compute_s"); };
  EXPECT_NEAR(compute(1024) / compute(1023), (1024 + 192) / (1023 + 192.0), 1e-3);
}

// In a long run each operand comes from memory once, at 0.8 of the bandwidth (GDDR 0.78).
TEST(Formulas, OperandsAreReadOnce) {
  for (const auto& [memory, share] : {std::pair("HBM2", 0.8), std::pair("GDDR6", 0.78)}) {
    const Gpu gpu = make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, memory, 1000, 40, 0);
    const double a = 25600.0 * 8192, b = 12800.0 * 8192, c = 25600.0 * 12800;
    EXPECT_NEAR(answer(gpu, product(25600, 12800, 8192), Mode::kSustained).steps.at("memory_s") /
                    (2 * (a + b + c) / (share * 1e12)),
                1, 1e-5);
  }
}

// Sums in fp32 are read and written, 8 bytes, instead of 2 bytes written: 6 bytes an element more, at 0.91 of the
// bandwidth. Half of that hides behind products, nothing behind memory.
TEST(Formulas, AccumulationInFp32MovesSixBytesMore) {
  const auto longer = [](double gbs, std::int64_t m, std::int64_t n, std::int64_t k) {
    const Gpu gpu = make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, "HBM2", gbs, 40, 0);
    Gemm sums{.m = m, .n = n, .k = k};
    sums.epilogue = Epilogue::kAccumulateFp32;
    return seconds(gpu, {sums, DType::kFp16}) - seconds(gpu, product(m, n, k));
  };
  EXPECT_NEAR(longer(1000, 2560, 1280, 65536) / (0.5 * 6 * 2560 * 1280 / 0.91e12), 1, 1e-3);
  EXPECT_NEAR(longer(10, 8, 16384, 16384) / (6 * 8.0 * 16384 / 0.91e10), 1, 1e-3);
}

// Alone and again and again, a kernel finds in L2 what fits there: 64 bytes a clock for each of 100 SMs at 1.5 GHz,
// 9.6 TB/s. In a step, others have been there.
TEST(Formulas, BurstsFindInL2WhatFits) {
  const Gpu gpu = make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, "HBM2", 1000, 40, 0);
  const auto floor = [&](double bytes, Mode mode) {
    return answer(gpu, {Copy{bytes / 2 * B}}, mode).forecast.floor / s;
  };
  EXPECT_NEAR(floor(4e6, Mode::kBurst), 4e6 / 9.6e12, 1e-12);
  EXPECT_NEAR(floor(4e9, Mode::kBurst), (4e9 - 40 * 1048576.0) / 1e12, 1e-9);
  EXPECT_NEAR(floor(4e6, Mode::kSustained), 4e6 / 1e12, 1e-12);
}

// Winograd's F(2x2, 3x3) has 16 multiplications in place of 36, for kernels of 3x3 at each place of the input.
TEST(Formulas, SmallConvolutionsMayBeFasterThanTheirProducts) {
  Convolution convolution{.batch = 32, .in_channels = 256, .in_height = 56, .in_width = 56, .out_channels = 256};
  convolution.kernel = 3, convolution.padding = 1;
  const auto model = make_compute_model(hundred_sms());
  const auto floor = [&] { return (*model)->forecast({convolution, DType::kFp32})->floor; };
  const auto at_peak = [&] {
    const Operator op{convolution, DType::kFp32};
    return work_of(op).flops / hundred_sms().matrix_peak(DType::kFp32);
  };
  EXPECT_NEAR(floor() / at_peak(), 16.0 / 36, 1e-9);
  convolution.stride = 2;
  EXPECT_NEAR(floor() / at_peak(), 1, 1e-9);
}

// Gradients of the data and of the weights: two products as large as the forward one.
TEST(Formulas, AConvolutionGoesBackwardWithTwoProducts) {
  Convolution convolution{.batch = 32, .in_channels = 256, .in_height = 56, .in_width = 56, .out_channels = 256};
  convolution.kernel = 3, convolution.stride = 1, convolution.padding = 1;
  const double forward = seconds(hundred_sms(), {convolution, DType::kFp16});
  convolution.pass = Pass::kBackward;
  EXPECT_NEAR(seconds(hundred_sms(), {convolution, DType::kFp16}) / forward, 2, 1e-6);
}

// Rows lie scattered (1.2 times the least traffic); their gradients are added by atomics (twice).
TEST(Formulas, GradientsOfAnEmbeddingAreAddedByAtomics) {
  const Gpu gpu = make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, "HBM2", 1000, 40, 0);
  const auto memory = [&](Pass pass) {
    return answer(gpu, {Embedding{.tokens = 65536, .hidden = 8192, .vocabulary = 1 << 20, .pass = pass}, DType::kFp16})
        .steps.at("memory_s");
  };
  const double least = (2 * 2 * 65536.0 * 8192 + 8 * 65536) / 0.91e12;  // s: rows in and out, and their numbers
  EXPECT_NEAR(memory(Pass::kForward) / (1.2 * least), 1, 1e-5);
  EXPECT_NEAR(memory(Pass::kBackward) / (2 * least), 1, 1e-5);
}

// A GPU with 1 TB/s of HBM and 100 SMs.
Gpu slow_memory() { return make_test_gpu("hundred", "unheard-of", 7, 100, 100, 0, 10, "HBM2", 1000, 40, 0); }

// What a term of a base takes with a coefficient of one, in s.
double term(const SumKind& kind, const Gpu& gpu, const Operator& op, std::string_view name) {
  const auto place = std::find(kind.terms.begin(), kind.terms.end(), name) - kind.terms.begin();
  return kind.of(*make_machine(gpu, Mode::kBurst), op).terms.at(static_cast<std::size_t>(place));
}

double norm_term(Library library, Pass pass, std::int64_t rows, std::int64_t columns, std::string_view name) {
  const Normalization norm{NormalizationKind::kRmsNorm, rows, columns, pass, library};
  return term(kNormalizationSum, slow_memory(), {norm, DType::kFp16}, name);
}

// Forward an activation is read and written; backward it is read with its gradient, and a gradient is written. Of rows
// with more than 4,096 columns cuDNN's backward kernel reads the rest once more. L2 holds nothing of a small one.
TEST(Formulas, ANormalizationGoesBackwardWithThreeTensors) {
  const auto tensor = [](double rows, double columns) { return 2 * rows * columns / 0.91e12; };  // s
  for (const std::int64_t rows : {256, 65536}) {
    const double one = tensor(static_cast<double>(rows), 4096);
    const auto of = [&](Pass pass, std::int64_t columns, std::string_view name) {
      return norm_term(Library::kCudnn, pass, rows, columns, name) / one;
    };
    EXPECT_NEAR(of(Pass::kForward, 4096, "memory"), 2, 1e-9);
    EXPECT_NEAR(of(Pass::kBackward, 4096, "memory"), 3, 1e-9);
    EXPECT_EQ(of(Pass::kBackward, 4096, "again"), 0);
    EXPECT_NEAR(of(Pass::kBackward, 8192, "again"), 1, 1e-9);
    EXPECT_EQ(of(Pass::kForward, 8192, "again"), 0);
  }
}

// PyTorch's kernel for the gradient of the weights has a block for each 32 columns: on 100 SMs 3,200 columns are one
// wave, one more column is the second.
TEST(Formulas, PyTorchsWeightGradientsGoInWavesOfColumns) {
  const auto sweep = [](std::int64_t columns) {
    return norm_term(Library::kEager, Pass::kBackward, 8192, columns, "weights");
  };
  EXPECT_NEAR(sweep(128) / (1e-9 * 8192), 1, 1e-9);
  EXPECT_DOUBLE_EQ(sweep(3200), sweep(128));
  EXPECT_DOUBLE_EQ(sweep(3201), 2 * sweep(128));
  EXPECT_EQ(norm_term(Library::kEager, Pass::kForward, 8192, 4096, "weights"), 0);
}

// TorchInductor's rows of up to 1,024 columns share blocks; a longer row waits, and a row of 8,192 columns hides three
// quarters of that behind its own loads.
TEST(Formulas, CompiledRowsWaitWhereABlockHasOneRow) {
  const auto waits = [](std::int64_t columns) {
    return norm_term(Library::kCompiled, Pass::kForward, 6400, columns, "rows");
  };
  EXPECT_EQ(waits(1024), 0);
  EXPECT_NEAR(waits(4096) / 64e-9, 1, 1e-9);  // 64 rows for each SM
  EXPECT_NEAR(waits(8192) / waits(4096), 0.25, 1e-9);
}

// A row of 5,120 columns is three blocks of 2,048, as one of 6,144 is.
TEST(Formulas, CompiledRowsGoThroughInWholeBlocks) {
  const auto work = [](std::int64_t columns) {
    return norm_term(Library::kCompiled, Pass::kBackward, 8192, columns, "elements");
  };
  EXPECT_DOUBLE_EQ(work(5120), work(6144));
  EXPECT_DOUBLE_EQ(work(6144), 3 * work(2048));
  EXPECT_DOUBLE_EQ(work(1000) / work(500), 2);
}

// The fourth root of the sum of fourth powers: 19 % above the roofline where both take as long, hardly more than the
// longer one where the other is short.
TEST(Formulas, ComputeAndMemoryOverlap) {
  EXPECT_NEAR(overlap(1, 1), std::sqrt(std::sqrt(2.0)), 1e-12);
  EXPECT_NEAR(overlap(2, 1), std::sqrt(std::sqrt(17.0)), 1e-12);
  EXPECT_EQ(overlap(3, 2), overlap(2, 3));
  EXPECT_EQ(overlap(3, 0), 3);
}

// Each query sees the keys of its window and a block of 256 at its edges; half of what the first 1,023 queries have no
// keys for is saved. Without a window the mean of 1 to 8,192 keys and half of a block. No window takes longer than
// that.
TEST(Formulas, AWindowLeavesTheKeysOfItsWidth) {
  const auto products = [](std::int64_t window) {
    Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .query_length = 8192, .key_length = 8192};
    attention.head_dim = attention.value_dim = 128, attention.window = window;
    return term(kAttentionSum, h100(), {attention, DType::kBf16}, "products");
  };
  const double none = 8192 * (8193.0 + 256) / 2, missing = 1023 * 1024 / 2.0;
  EXPECT_NEAR(products(1024) / products(0), (8192 * (1024.0 + 256) - missing / 2) / none, 1e-9);
  EXPECT_EQ(products(8191), products(0));
  EXPECT_EQ(products(8192), products(0));
  double before = 0;
  for (std::int64_t window = 64; window <= 8192; window += 64) {
    EXPECT_GE(products(window), before) << window;
    before = products(window);
  }
}

// Five products instead of two, three of them as wide as keys and two as wide as values.
TEST(Formulas, MeasuredAttentionGoesBackwardWithFiveProducts) {
  const auto products = [](Pass pass) {
    Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .query_length = 8192, .key_length = 8192};
    attention.head_dim = 192, attention.value_dim = 128, attention.pass = pass;
    return term(kAttentionSum, h100(), {attention, DType::kBf16}, "products");
  };
  // cuDNN's backward kernels on Hopper compute heads of 192 as those of 256.
  EXPECT_NEAR(products(Pass::kBackward) / products(Pass::kForward), (3.0 * 256 + 2 * 128) / (192 + 128), 1e-9);
}

// FlashAttention-2 has a kernel for 96, cuDNN computes it as 128; both have one for 64.
TEST(Formulas, HeadsArePaddedToTheNextKernel) {
  const auto products = [](Library library, std::int64_t head_dim) {
    Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .query_length = 8192, .key_length = 8192};
    attention.head_dim = attention.value_dim = head_dim, attention.library = library;
    return term(kAttentionSum, h100(), {attention, DType::kBf16}, "products");
  };
  EXPECT_NEAR(products(Library::kCudnn, 96) / products(Library::kCudnn, 64), 2, 1e-9);
  EXPECT_NEAR(products(Library::kFlash2, 96) / products(Library::kFlash2, 64), 1.5, 1e-9);
  EXPECT_NEAR(products(Library::kFlash2, 80) / products(Library::kFlash2, 96), 1, 1e-9);
  EXPECT_NEAR(products(Library::kCudnn, 320) / products(Library::kCudnn, 64), 5, 1e-9) << "beyond all kernels";
}

// A kernel of cuDNN that takes t s at full clock takes t (1 + 0.2 t / (t + 0.1 s)): a tenth more at 0.1 s.
TEST(Formulas, LongAttentionLosesClock) {
  for (const std::int64_t length : {1024, 65536, 262144}) {
    Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .query_length = length, .key_length = length};
    attention.head_dim = attention.value_dim = 128;
    const Answer asked = answer(h100(), {attention, DType::kBf16});
    const double lost = asked.steps.at("power_s"), cold = asked.forecast.latency / s - lost;
    EXPECT_NEAR(lost / (0.2 * cold * cold / (cold + 0.1)), 1, 1e-4) << length;
    attention.library = Library::kFlash2;  // draws less power
    EXPECT_EQ(answer(h100(), {attention, DType::kBf16}).steps.count("power_s"), 0U);
  }
}

// FlashAttention-2 has one head dimension.
TEST(Formulas, FlashAttention2PadsNarrowValues) {
  const auto products = [](std::int64_t value) {
    Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .query_length = 8192, .key_length = 8192};
    attention.head_dim = 192, attention.value_dim = value;
    attention.pass = Pass::kBackward, attention.library = Library::kFlash2;
    return term(kAttentionSum, a100(), {attention, DType::kFp16}, "products");
  };
  EXPECT_DOUBLE_EQ(products(128), products(192));
}

// Each edge of a mask cuts 128 keys of each query; heads that share keys sum four bytes for each element of their
// gradients; products of heads wider than 128 count twice, each with a coefficient.
TEST(Formulas, BackwardAttentionByItsParts) {
  Attention attention{.batch = 2, .heads = 16, .kv_heads = 16, .query_length = 8192, .key_length = 8192};
  attention.head_dim = attention.value_dim = 128, attention.pass = Pass::kBackward;
  const auto part = [](const Attention& op, std::string_view name) {
    return term(kAttentionSum, h100(), {op, DType::kFp16}, name);
  };
  EXPECT_EQ(part(attention, "groups"), 0);
  Attention shared = attention;
  shared.kv_heads = 2;
  // 4 bytes for 2 x 16 heads, 8,192 keys and 256 columns, at 3.35 TB/s
  EXPECT_NEAR(part(shared, "groups") / (4 * 32 * 8192.0 * 256 / 3.35e12), 1, 1e-3);
  shared.pass = Pass::kForward;
  EXPECT_EQ(part(shared, "groups"), 0);

  // 16 exponentials a clock and SM
  const double rate = 16 * 132 * (h100().boost_clock / Hz);
  EXPECT_NEAR(part(attention, "edges") / (128 * 32 * 8192.0 / rate), 1, 1e-9);
  Attention window = attention;
  window.window = 1024;
  EXPECT_NEAR(part(window, "edges") / part(attention, "edges"), 2, 1e-9);
  window.causal = false, window.window = 0;
  EXPECT_EQ(part(window, "edges"), 0);

  EXPECT_EQ(part(attention, "wide"), 0);
  attention.head_dim = attention.value_dim = 256;
  EXPECT_EQ(part(attention, "wide"), part(attention, "products"));
}

// The sum of which a kernel's time was made, and back.
TEST(Formulas, TheClockThatALongKernelLosesIsTakenOff) {
  Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .query_length = 8192, .key_length = 8192};
  attention.library = Library::kCudnn;
  for (const double sum : {1e-5, 1e-2, 1.0}) {
    EXPECT_NEAR(kAttentionSum.sum_of({attention, DType::kBf16}, sum * (1 + 0.2 * sum / (sum + 0.1))) / sum, 1, 1e-9);
  }
  attention.library = Library::kFlash2;
  EXPECT_EQ(kAttentionSum.sum_of({attention, DType::kBf16}, 1), 1);
}

// 192 queries are two blocks of 128, as 256 are.
TEST(Formulas, QueriesArePaddedToBlocks) {
  const Gpu gpu = test_gpus()[2];
  const auto compute = [&](std::int64_t queries) {
    Attention attention{.batch = 8, .heads = 16, .kv_heads = 16, .query_length = queries, .key_length = 4096};
    attention.head_dim = attention.value_dim = 128, attention.causal = false;
    return answer(gpu, {attention, DType::kFp16}).steps.at("compute_s");
  };
  EXPECT_NEAR(compute(192) / compute(256), 1, 0.03);
  EXPECT_NEAR(compute(129) / compute(256), 1, 0.06);
}

// Gate and up are one product of each of eight experts' rows, 8,192 of them, down is another.
TEST(Formulas, ServedExpertsHaveThreeProjections) {
  const MixtureOfExperts experts{.tokens = 32768, .hidden = 4096, .intermediate = 4096, .experts = 8, .top_k = 2};
  const auto batched = [](std::int64_t n) {
    return seconds(hundred_sms(), {Gemm{.batch = 8, .m = 8192, .n = n, .k = 4096}, DType::kFp16});
  };
  EXPECT_NEAR(seconds(hundred_sms(), {experts, DType::kFp16}) / (batched(8192) + batched(4096)), 1, 0.02);
}

// What trees correct, before they do.
double base(const Gpu& gpu, Predictor predictor, const Operator& op, Mode mode = Mode::kBurst) {
  return features_of(predictor, *make_machine(gpu, mode), op, mode, {}).base;
}

// A product of one small tile is launch and drain: 4,250 clocks, whatever the peak.
TEST(Formulas, LaunchesTakeClocks) {
  Gpu slow = a100(), fast = a100();
  slow.boost_clock = 1 * units::GHz, fast.boost_clock = 2 * units::GHz;
  const Operator op{Gemm{.m = 16, .n = 32, .k = 32}, DType::kBf16};
  EXPECT_NEAR((base(slow, Predictor::kGemm, op) - base(fast, Predictor::kGemm, op)) / (4250 * 0.5e-9), 1, 0.01);
}

// 64 MB of L2 and memory of 500 GB/s, of which a product reaches 0.8. Two copies of 32 MB stay in L2, two copies of 37
// MB do not; in a long run nothing does.
TEST(Formulas, BenchmarksWalkThroughCopiesOfTheWeights) {
  Gpu gpu = a100();
  gpu.boost_clock = 1.41 * units::GHz, gpu.l2_cache = 64 * units::MB;
  gpu.memory_bandwidth = 500 * units::GB / units::s;
  const auto of_memory = [&](std::int64_t size, Mode mode) {
    const double n = static_cast<double>(size), bytes = 2 * (n * n + 2 * 16 * n);
    const Operator op{Gemm{.m = 16, .n = size, .k = size}, DType::kBf16};
    return (base(gpu, Predictor::kGemm, op, mode) - 4250 / 1.41e9) / (bytes / (0.8 * 500e9));
  };
  EXPECT_LT(of_memory(4000, Mode::kBurst), 0.4);
  EXPECT_NEAR(of_memory(4300, Mode::kBurst), 1, 0.02);
  EXPECT_NEAR(of_memory(4000, Mode::kSustained), 1, 0.02);
}

// Of what power allows, long runs reach 0.95 where warp groups feed the units and 1.03 elsewhere, bursts 1.07.
TEST(Formulas, LongRunsHeatTheBoard) {
  const auto slower = [](const Gpu& gpu) {
    const Operator op{Gemm{.m = 8192, .n = 8192, .k = 8192}, DType::kBf16};
    return base(gpu, Predictor::kGemm, op, Mode::kSustained) / base(gpu, Predictor::kGemm, op);
  };
  Gpu hopper = h100();
  hopper.compute_capability = "9.0";
  EXPECT_NEAR(slower(hopper), 1.1, 0.03);
  EXPECT_NEAR(slower(a100()), 1.02, 0.02);
}

// Two instructions of vector units (2 FLOP each) for 128 products of each sum: 4 m n k / 128 FLOP at 66.9 TFLOP/s.
// Units that multiply in 4 bits have block scales of their own.
TEST(Formulas, VectorUnitsScaleBlocksWhereNoOthersDo) {
  Gemm gemm{.m = 4096, .n = 2048, .k = 8192};
  gemm.quantizes = true;
  Gpu with = h100();
  with.tensor[DType::kFp4] = 2 * with.tensor[DType::kFp8];
  const auto more = [&] {
    const Operator op{gemm, DType::kFp8};
    return base(h100(), Predictor::kGemmFp8, op) - base(with, Predictor::kGemmFp8, op);
  };
  EXPECT_EQ(more(), 0) << "one scale for the tensor";
  gemm.scaling = Scaling::kBlock;
  EXPECT_NEAR(more() / (4 * 4096.0 * 2048 * 8192 / 128 / 66.9e12), 1, 1e-9);
}

// One head of 8,192 queries has 64 blocks, of which the longest visits all 64 tiles of keys. 3 heads have 3 x 64 x 65 /
// 2 visits, 58 for each of 108 SMs: the longest block decides as before. 12 heads have 231 for each.
TEST(Formulas, TheLongestBlockOrAnSmsShareDecides) {
  const auto seconds = [](std::int64_t heads) {
    Attention attention{.heads = heads, .kv_heads = 1, .query_length = 8192, .key_length = 8192};
    attention.head_dim = attention.value_dim = 128, attention.causal = true;
    attention.library = Library::kServing;
    return base(a100(), Predictor::kAttention, {attention, DType::kBf16});
  };
  const double launch = 1.86e4 / 1.41e9;
  EXPECT_NEAR((seconds(3) - launch) / (seconds(1) - launch), 1, 0.03) << "more memory alone";
  EXPECT_NEAR((seconds(12) - launch) / (seconds(1) - launch), 12 * 64 * 65 / 2 / 108.0 / 64, 0.03 * 3.6);
}

// A100 runs 16 blocks of 128 threads on each of 108 SMs, so 1,728 rows of LayerNorm at a time, and has an L2 of 40 MiB:
// up to 0.4 of it, 2,427 columns in FP32, memory is read once and written once; from 0.9 on, 5,461, read twice.
TEST(Formulas, RowsThatLeaveL2AreReadFromMemoryAgain) {
  const auto traffic = [](std::int64_t columns) {
    return answer(a100(), {Normalization{.rows = 65536, .columns = columns}, DType::kFp32}).steps.at("traffic_B") /
           (8 * 65536.0 * static_cast<double>(columns));
  };
  EXPECT_NEAR(traffic(2424), 1, 1e-3);
  EXPECT_NEAR(traffic(5464), 1.5, 1e-3);
  EXPECT_NEAR(traffic(3640), 1.25, 1e-3) << "between them by the logarithm: sqrt(2,427 x 5,461)";
}

// PyTorch computes a softmax of 16 bits in fp32, 0.7 clocks of an SM for each element; the fused one only streams.
TEST(Formulas, AnEagerSoftmaxOf16BitsTakesClocks) {
  const auto compute = [](Library library, DType dtype) {
    const Softmax op{.rows = 1080, .columns = 1000, .library = library};
    return answer(a100(), {op, dtype}).steps.at("compute_s");
  };
  EXPECT_NEAR(compute(Library::kEager, DType::kBf16), 10 * 1000 * 0.7 / 1.5e9,
              1e-9);  // the tests' A100 has no clock: 1.5 GHz
  EXPECT_EQ(compute(Library::kDefault, DType::kBf16), 0);
  EXPECT_EQ(compute(Library::kEager, DType::kFp32), compute(Library::kDefault, DType::kFp32));
}

// PyTorch's softmax: 256 threads handle 1,600 columns in one step of four elements each and three of one, and 4,096
// columns with 512 threads in two steps. To 1,024 columns a warp pads a row to a power of two.
TEST(Formulas, SoftmaxHandlesWhatIsLeftOverOneByOne) {
  const auto clocks = [](std::int64_t columns) {
    return answer(a100(), {Softmax{.rows = 108, .columns = columns}, DType::kFp32}).steps.at("compute_s");
  };
  EXPECT_NEAR(clocks(1600) / clocks(4096), 256 * 4.0 / (512 * 2), 1e-3);
  EXPECT_NEAR(clocks(2048) / clocks(4096), 256 * 2.0 / (512 * 2), 1e-3);
  EXPECT_NEAR(clocks(600) / clocks(1024), 1, 1e-3);
  EXPECT_NEAR(clocks(512) / clocks(1024), 0.5, 1e-3);
}

// Measured of cuDNN alone, not of the fused kernels that steps run by default.
TEST(Formulas, CudnnsLayerNormTakesLongerBackward) {
  const auto seconds_of = [](NormalizationKind kind, Pass pass, Library library) {
    const Operator op{Normalization{kind, 8192, 8192, pass, library}, DType::kBf16};
    return seconds(h100(), op);
  };
  constexpr auto kLayer = NormalizationKind::kLayerNorm, kRms = NormalizationKind::kRmsNorm;
  const double rms = seconds_of(kRms, Pass::kBackward, Library::kCudnn);
  EXPECT_NEAR(seconds_of(kLayer, Pass::kBackward, Library::kCudnn) / rms, 2.5, 1e-9);
  EXPECT_DOUBLE_EQ(seconds_of(kLayer, Pass::kBackward, Library::kDefault), rms);
  EXPECT_DOUBLE_EQ(seconds_of(kLayer, Pass::kForward, Library::kCudnn),
                   seconds_of(kRms, Pass::kForward, Library::kCudnn));
}

}  // namespace
}  // namespace ns_dist
