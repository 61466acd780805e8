#include "neusight/fusion.h"

#include <gtest/gtest.h>

#include "compute_model_gpus.h"
#include "ns_dist/compute_model.h"

namespace ns_dist {
namespace {

using namespace units;

Operator pointwise(std::int64_t elements, double inputs, double flops = 1) {
  return {Elementwise{.elements = elements, .inputs = inputs, .outputs = 1, .flops_per_element = flops}, DType::kFp32};
}
Operator product(std::int64_t m, std::int64_t n) { return {Gemm{.m = m, .n = n, .k = 64}, DType::kFp32}; }

std::vector<FusedKernel> fused(const std::vector<FusionStep>& steps) {
  auto kernels = fuse(steps);
  EXPECT_TRUE(kernels) << (kernels ? "" : to_text(kernels.error()));
  return kernels ? std::move(*kernels) : std::vector<FusedKernel>();
}

TEST(Fusion, AChainReadsItsInputAndWritesItsEndOnce) {
  // product -> + bias -> GELU -> dropout mask (1/4 element a mask's byte)
  const double n = 1 << 20;
  const auto kernels = fused({{product(1024, 1024)},
                              {pointwise(1 << 20, 2), {0}, 1024},
                              {pointwise(1 << 20, 1, 10), {1}},
                              {pointwise(1 << 20, 1.25, 2), {2}, n / 4}});
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].steps, std::vector<std::size_t>({0}));
  EXPECT_EQ(kernels[1].steps, std::vector<std::size_t>({1, 2, 3}));
  const auto& chain = std::get<Elementwise>(kernels[1].op.kind);
  EXPECT_DOUBLE_EQ(chain.inputs, (n + 1024 + n / 4) / n);
  EXPECT_DOUBLE_EQ(chain.outputs, 1);
  EXPECT_DOUBLE_EQ(chain.flops_per_element, 1 + 10 + 2);
}

TEST(Fusion, WritesWhatItsStepsWrite) {
  // Dropout writes a byte of mask beside each of its four, a comparison a byte alone.
  Operator dropout = pointwise(4096, 1), mask = pointwise(4096, 1);
  std::get<Elementwise>(dropout.kind).outputs = 1.25, std::get<Elementwise>(mask.kind).outputs = 0.25;
  const auto kernels = fused({{pointwise(4096, 1), {}, 4096}, {dropout, {0}}, {mask, {0}}});
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_DOUBLE_EQ(std::get<Elementwise>(kernels[0].op.kind).outputs, 1.25 + 0.25);
}

TEST(Fusion, AnOutputThatOthersReadIsWritten) {
  // x = a + b; y = f(x), which a product reads; z = g(y) in the same kernel. Residuals: x is wanted later.
  const auto kernels = fused({{pointwise(4096, 2), {}, 8192, true},
                              {pointwise(4096, 1), {0}},
                              {product(64, 64), {1}},
                              {pointwise(4096, 1), {1}}});
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[1].steps, std::vector<std::size_t>({0, 1, 3}));
  const auto& group = std::get<Elementwise>(kernels[1].op.kind);
  EXPECT_DOUBLE_EQ(group.inputs, 2);   // a, b
  EXPECT_DOUBLE_EQ(group.outputs, 3);  // x is kept, the product reads y, z is the end
}

TEST(Fusion, NothingIsJoinedAcrossAProduct) {
  // The residual x + W f(x): the sum waits for the product, which waits for f, so x is read again.
  const auto kernels = fused({{pointwise(4096, 1), {}, 4096}, {product(64, 64), {0}}, {pointwise(4096, 2), {0, 1}}});
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(std::get<Elementwise>(kernels[2].op.kind).inputs, 2);
}

TEST(Fusion, OtherSizesAndFormatsStayApart) {
  EXPECT_EQ(fused({{pointwise(4096, 1), {}, 4096}, {pointwise(2048, 1), {0}}}).size(), 2u);
  Operator half = pointwise(4096, 1);
  half.dtype = DType::kBf16;
  EXPECT_EQ(fused({{pointwise(4096, 1), {}, 4096}, {half, {0}}}).size(), 2u);
}

TEST(Fusion, NormAndResidualAreOneKernelAndWideRowsAreReadAgain) {
  const auto norm = [](std::int64_t columns) {
    const std::int64_t rows = (1 << 20) / columns;
    return fused({{pointwise(1 << 20, 2), {}, 2.0 * (1 << 20), true},
                  {{Normalization{.rows = rows, .columns = columns}, DType::kFp32}, {0}}});
  };
  ASSERT_EQ(norm(1024).size(), 1u);
  EXPECT_DOUBLE_EQ(std::get<Elementwise>(norm(1024)[0].op.kind).inputs, 2);
  EXPECT_GT(std::get<Elementwise>(norm(4096)[0].op.kind).inputs, 2);
}

TEST(Fusion, IsNeverSlowerThanItsSteps) {
  for (const Gpu& gpu : test_gpus()) {
    const auto model = make_compute_model(gpu, {.mode = Mode::kSustained, .analytic = true});
    ASSERT_TRUE(model);
    for (const std::int64_t elements : {1 << 10, 1 << 18, 1 << 26}) {
      const std::vector<FusionStep> steps = {{pointwise(elements, 2), {}, 2.0 * static_cast<double>(elements)},
                                             {pointwise(elements, 1, 10), {0}},
                                             {pointwise(elements, 2), {1}, static_cast<double>(elements)}};
      double apart = 0;
      for (const FusionStep& step : steps) apart += (*model)->forecast(step.op)->latency / s;
      const auto kernels = fused(steps);
      ASSERT_EQ(kernels.size(), 1u);
      EXPECT_LT((*model)->forecast(kernels[0].op)->latency / s, apart) << gpu.id << " " << elements;
    }
  }
}

TEST(Fusion, RefusesStepsOutOfOrder) {
  const auto later = fuse(std::vector<FusionStep>{{pointwise(8, 1), {1}}, {pointwise(8, 1)}});
  ASSERT_FALSE(later);
  EXPECT_NE(to_text(later.error()).find("step 0 reads step 1"), std::string::npos) << to_text(later.error());
  EXPECT_FALSE(fuse(std::vector<FusionStep>{{pointwise(8, 1), {}, -1}}));
  EXPECT_FALSE(fuse(std::vector<FusionStep>{{pointwise(0, 1)}}));
}

}  // namespace
}  // namespace ns_dist
