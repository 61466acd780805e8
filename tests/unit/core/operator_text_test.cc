// Does an operator that was written as a text come back?
#include "ns_dist/operator_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace ns_dist {
namespace {

using namespace units;

struct Anything {
  template <class T>
  operator T() const;
};
template <class T, class... Members>
consteval std::size_t member_count() {
  if constexpr (requires { T{Members{}..., Anything{}}; }) {
    return member_count<T, Members..., Anything>();
  } else {
    return sizeof...(Members);
  }
}

// Each has no member at its default, which a spec leaves out: a member that a spec does not know is noticed.
TEST(OperatorText, EveryKindComesBack) {
  const std::vector<OperatorKind> kinds = {
      Gemm{2, 3, 4, 5, GemmLayout::kTN, Epilogue::kAccumulateFp32, Scaling::kBlock, true},
      Attention{2, 16, 4, 128, 256, 64, 128, false, 32, Pass::kBackward, Library::kFlash3, true, Scaling::kBlock, 3},
      Softmax{7, 9, Pass::kBackward, Library::kEager},
      Normalization{NormalizationKind::kRmsNorm, 5, 6, Pass::kBackward, Library::kCudnn},
      Elementwise{"a b|c=%", 99, 2.5, 0.125, 3, true},
      Embedding{3, 4, 5, Pass::kBackward},
      CrossEntropy{3, 4, Pass::kBackward, Library::kLiger},
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
      const std::string spec = to_spec(op);
      const std::size_t members =
          std::visit([](const auto& each) { return member_count<std::decay_t<decltype(each)>>(); }, kind);
      EXPECT_EQ(std::count(spec.begin(), spec.end(), '='), static_cast<std::ptrdiff_t>(members + 1)) << spec;
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
