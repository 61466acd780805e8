#include "ns_dist/operator_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace ns_dist {
namespace {

class Given final : public OperatorFields {
 public:
  explicit Given(std::map<std::string, std::string, std::less<>> values) : values_(std::move(values)) {}
  std::string_view text(std::string_view name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? std::string_view() : std::string_view(found->second);
  }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

TEST(OperatorForms, EachRowMakesTheAlternativeOfItsPlace) {
  for (std::size_t i = 0; i < operator_forms().size(); ++i) {
    const OperatorForm& form = operator_forms()[i];
    std::map<std::string, std::string, std::less<>> values = {
        {"bytes", "8"}, {"flops", "8"}, {"read_bytes", "8"}, {"topk", "2"}};
    for (const std::string_view name : words_of(form.dimensions)) {
      values.emplace(name.starts_with('[') ? name.substr(1, name.size() - 2) : name, "8");
    }
    Given fields(values);
    const Operator op{form.make(fields, form.family)};
    EXPECT_EQ(fields.problem(), "") << form.family;
    EXPECT_EQ(op.kind.index(), i) << form.family;
    EXPECT_EQ(family_of(op), form.family);
    EXPECT_TRUE(validate(op)) << form.family;
  }
}

TEST(OperatorForms, EveryNameIsOfOneRow) {
  std::vector<std::string> names = operator_names();
  for (const std::string& name : names) EXPECT_NE(find_operator_form(name), nullptr) << name;
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(find_operator_form("rmsnorm")->family, "normalization");
  EXPECT_EQ(find_operator_form("norm"), nullptr);
  EXPECT_EQ(find_operator_form(""), nullptr);
}

TEST(OperatorForms, FieldsKeepTheFirstMistake) {
  Given fields({{"m", "8.0"}, {"n", "8.5"}, {"k", "two"}, {"layout", "xy"}});
  EXPECT_EQ(fields.whole("m"), 8);
  EXPECT_EQ(fields.whole("b", 3), 3);
  EXPECT_EQ(fields.problem(), "");
  find_operator_form("gemm")->make(fields, "gemm");
  EXPECT_EQ(fields.problem(), "n is \"8.5\"");
  Given layouts({{"m", "8"}, {"n", "8"}, {"k", "8"}, {"layout", "xy"}});
  find_operator_form("gemm")->make(layouts, "gemm");
  EXPECT_EQ(layouts.problem(), "layout is \"xy\"");
  EXPECT_EQ(layouts.expected(), "nn, nt, tn or tt; or in cuBLAS' capitals TN, NN or NT");
}

TEST(OperatorForms, OnlyOperatorsWithAPassHaveABackward) {
  for (const OperatorForm& form : operator_forms()) {
    Given fields({});
    OperatorKind kind = form.make(fields, form.family);
    const auto set = set_pass(kind, Pass::kBackward);
    EXPECT_EQ(set.has_value(), form.instead_of_backward.empty()) << form.family;
    EXPECT_TRUE(set_pass(kind, Pass::kForward));
  }
}

}  // namespace
}  // namespace ns_dist
