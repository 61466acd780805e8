// The names, columns and shapes of operators: one row for each kind. Tables of kernels, `ns-dist explain` and the help
// read these rows.
//
//   if (const OperatorForm* form = find_operator_form("rmsnorm")) kind = form->make(fields, "rmsnorm");
//
// A new operator is a row in operator_forms.cc, a type in operator.h with its members in operator_members.h, and its
// work in operator.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ns_dist/operator.h"

namespace ns_dist {

// The most of one dimension among several, of the only one, of bytes and of FLOPs: far above any kernel.
inline constexpr std::int64_t kLargestDimension = std::int64_t{1} << 31, kLargestAlone = 9'000'000'000'000'000;
inline constexpr double kMostBytes = 1e18, kMostFlops = 1e24;

// The dimensions of one operator by the names of columns: from a row of a table, or from a shape and flags.
class OperatorFields {
 public:
  virtual std::string_view text(std::string_view name) const = 0;  // empty: not given

  bool has(std::string_view name) const { return !text(name).empty(); }
  // A missing field without a fallback, or a text that is no number up to `most`, is noted as a problem, and the result
  // is 0.
  double real(std::string_view name, std::optional<double> fallback = std::nullopt, double most = kMostBytes);
  std::int64_t whole(std::string_view name, std::optional<std::int64_t> fallback = std::nullopt,
                     std::int64_t most = kLargestDimension);
  // The first mistake is kept.
  void note(std::string problem, std::string expected = "a finite number in its range");
  const std::string& problem() const { return problem_; }
  const std::string& expected() const { return expected_; }

 protected:
  ~OperatorFields() = default;

 private:
  std::string problem_;
  std::string expected_;
};

// Columns and their texts.
using ColumnTexts = std::vector<std::pair<std::string_view, std::string>>;

struct OperatorForm {
  std::string_view family{};       // what family_of gives; the first of its names
  std::string_view description{};  // a line for people
  std::string_view aliases{};      // other names, with blanks between them
  std::string_view columns{};      // dimensions in a table, for people; those that may be left out in brackets
  // On a command line: the shape for people, the column of each of its dimensions (in brackets: 1 where they are
  // left out), an example. A shape without dimensions is a text of its own.
  std::string_view shape{}, dimensions{}, example{};
  std::string_view options{};  // more columns that `make` reads
  // What to write for the backward of an operator that has none of its own.
  std::string_view instead_of_backward{};
  // Makes the operator of that name in its forward pass; mistakes are noted in the fields.
  OperatorKind (*make)(OperatorFields& fields, std::string_view name) = nullptr;
  // The inverse: the name and the columns from which `make` makes the operator, without dtype and pass.
  std::string_view (*write)(const OperatorKind& kind, ColumnTexts& columns) = nullptr;
};

// In the order of OperatorKind's alternatives.
std::span<const OperatorForm> operator_forms();

// The form that has this name or alias; null where none has.
const OperatorForm* find_operator_form(std::string_view name);

// All names and aliases.
std::vector<std::string> operator_names();

// The words of a list such as `aliases`.
std::vector<std::string_view> words_of(std::string_view list);

// The row of a table that describes `op`, from column op on. Tables have no columns for a bias or GELU in the epilogue
// of a product, and know pointwise chains by their inputs and outputs alone.
ColumnTexts columns_of(const Operator& op);
// Its column dtype: the element's format, or a format with a scale for each block.
std::string_view format_of(const Operator& op);

// A number format of tables and command lines: of the elements, and whether products have a scale for each block.
struct NumberFormat {
  DType dtype = DType::kBf16;
  bool scaled_by_block = false;
};
// By our names, PyTorch's or those of nccl-tests, in whatever case; nothing where the word is none.
std::optional<NumberFormat> read_format(std::string_view word);
std::string format_words();  // "fp64, double, float64, fp32, ...": all of them, for errors

// Makes an operator the pass that is asked for. Error: it has no backward form; what to write instead.
Result<void> set_pass(OperatorKind& kind, Pass pass);

}  // namespace ns_dist
