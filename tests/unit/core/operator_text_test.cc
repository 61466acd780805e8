// Does an operator that was written as a text come back?
#include "ns_dist/operator_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace ns_dist {
namespace {

using namespace units;

TEST(OperatorText, EveryKindComesBack) {
  const std::vector<OperatorKind> kinds = {
      Gemm{2, 3, 4, 5, GemmLayout::kTN, Epilogue::kAccumulateFp32, Scaling::kBlock, true},
      Attention{2, 16, 4, 128, 256, 64, 128, false, 32, Pass::kBackward, Library::kFlash3, true, Scaling::kBlock},
      Softmax{7, 9, Pass::kBackward, Library::kEager},
      Normalization{NormalizationKind::kRmsNorm, 5, 6, Pass::kBackward, Library::kCudnn},
      Elementwise{"a b|c=%", 99, 2.5, 0.125, 3},
      Embedding{3, 4, 5, Pass::kBackward},
      CrossEntropy{3, 4, Pass::kBackward},
      OptimizerStep{405'000'000'000},
      GroupedGemm{8, 64, 32, 16, GemmLayout::kNN, Epilogue::kAccumulate, true, Scaling::kBlock},
      MixtureOfExperts{10, 20, 30, 40, 2, 0.1},
      Copy{1e12 * B},
      Convolution{32, 64, 56, 56, 64, 3, 2, 1, Pass::kBackward},
      UnknownOperator{"mine", 1e15 * FLOP, 5 * B, 0.5 * B}};
  ASSERT_EQ(kinds.size(), std::variant_size_v<OperatorKind>);
  for (const OperatorKind& kind : kinds) {
    for (const DType dtype : {DType::kBf16, DType::kFp8}) {
      const Operator op{kind, dtype};
      const auto back = operator_from_spec(to_spec(op));
      ASSERT_TRUE(back) << to_spec(op) << to_text(back.error());
      EXPECT_EQ(*back, op) << to_spec(op);
    }
  }
  EXPECT_EQ(to_spec({Gemm{.m = 8, .n = 9, .k = 10}, DType::kBf16}), "gemm dtype=bf16 m=8 n=9 k=10");
}

TEST(OperatorText, RefusesTheRest) {
  for (const char* spec : {"", "gem m=1", "gemm m=", "gemm m=x", "gemm m=1x", "gemm q=1", "gemm m", "gemm layout=xx",
                           "gemm dtype=bf17", "gemm m=0", "gemm m=-1", "elementwise inputs=nan", "elementwise name=%4",
                           "gemm quantizes=2", " gemm", "gemm  m=1"}) {
    EXPECT_FALSE(operator_from_spec(spec)) << spec;
  }
}

}  // namespace
}  // namespace ns_dist
