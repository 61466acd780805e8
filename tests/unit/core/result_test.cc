#include "ns_dist/result.h"

#include <gtest/gtest.h>

namespace ns_dist {
namespace {

Result<int> half(int value) {
  if (value % 2 == 0) return value / 2;
  return fail({ErrorCode::kInvalidInput, "odd", "value", "an even number", "add one"});
}

Result<int> quarter(int value) {
  NS_TRY(const int halved, half(value));
  return half(halved);
}

Result<void> even(int value) {
  NS_TRY_VOID(half(value).map([](int) {}));
  return {};
}

TEST(Result, TryPassesTheErrorOn) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message, "odd");
  EXPECT_FALSE(even(3));
  EXPECT_TRUE(even(4));
}

TEST(Result, AnErrorSaysPlaceExpectationAndRemedy) {
  EXPECT_EQ(to_text(quarter(3).error()), "value: odd; expected an even number; add one");
}

TEST(Result, JoinedErrorsAreOneLineEach) {
  Error one{ErrorCode::kInvalidInput, "first", "a.json#/x"};
  Error two{ErrorCode::kInvalidInput, "second", "a.json#/y"};
  EXPECT_EQ(to_text(join({one, two})), "a.json#/x: first\na.json#/y: second");
}

TEST(Result, ABrokenContractIsThrown) {
  try {
    NS_EXPECTS(1 > 2);
    FAIL() << "nothing was thrown";
  } catch (const BrokenContract& bug) {
    EXPECT_NE(std::string(bug.what()).find("1 > 2 is false at "), std::string::npos) << bug.what();
  }
}

}  // namespace
}  // namespace ns_dist
