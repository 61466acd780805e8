// Does an operator that was written as a text come back?
#include "ns_dist/operator_text.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

#include "ns_dist/internal/operator_members.h"

namespace ns_dist {
namespace {

using namespace units;

// One of each kind. None has a member at its default, which a spec leaves out.
std::vector<OperatorKind> one_of_each_kind() {
  return {
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
}

// An operator whose member of this place is the default; other members stay.
Operator with_default(Operator op, std::size_t place) {
  std::visit(
      [&]<class Kind>(Kind& kind) {
        Kind usual;
        std::size_t at = 0;
        visit_members(usual, [&](std::string_view name, const auto& value) {
          if (at++ != place) return;
          visit_members(kind, [&](std::string_view other, auto& member) {
            if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::decay_t<decltype(value)>>) {
              if (other == name) member = value;
            }
          });
        });
      },
      op.kind);
  return op;
}

TEST(OperatorText, EveryKindComesBack) {
  ASSERT_EQ(one_of_each_kind().size(), std::variant_size_v<OperatorKind>);
  for (const OperatorKind& kind : one_of_each_kind()) {
    for (const DType dtype : {DType::kBf16, DType::kFp8}) {
      const Operator op{kind, dtype};
      const auto back = operator_from_spec(to_spec(op));
      ASSERT_TRUE(back) << to_spec(op) << to_text(back.error());
      EXPECT_EQ(*back, op) << to_spec(op);
    }
  }
  EXPECT_EQ(to_spec({Gemm{.m = 8, .n = 9, .k = 10}, DType::kBf16}), "gemm dtype=bf16 m=8 n=9 k=10");
}

TEST(OperatorText, EveryMemberIsInTheSpecAndInTheHash) {
  for (const OperatorKind& kind : one_of_each_kind()) {
    const Operator op{kind, DType::kBf16};
    EXPECT_EQ(hash_of(op), hash_of(Operator(op)));
    EXPECT_NE(hash_of(op), hash_of({kind, DType::kFp8})) << to_spec(op);
    const std::size_t members =
        std::visit([](const auto& each) { return count_of_members<std::decay_t<decltype(each)>>(); }, kind);
    for (std::size_t member = 0; member < members; ++member) {
      const Operator other = with_default(op, member);
      EXPECT_NE(other, op) << to_spec(op) << " member " << member;
      EXPECT_NE(to_spec(other), to_spec(op)) << member;
      EXPECT_NE(hash_of(other), hash_of(op)) << to_spec(op) << " member " << member;
    }
  }
  EXPECT_EQ(hash_of({Elementwise{.flops_per_element = -0.0}}), hash_of({Elementwise{.flops_per_element = 0.0}}));
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
