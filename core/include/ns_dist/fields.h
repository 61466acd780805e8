// Fields: the values that a user can set, each with a name; values are read from texts. A struct with such members has
// a table beside it:
//
//   template <class Visitor, OrConst<ParallelPlan> Plan>
//   void visit_fields(Visitor&& visit, Plan& plan) {
//     visit({.name = "plan/tp", .help = "tensor-parallel ranks"}, plan.tp);
//
// Flags, their help, the JSON of reports and of published runs, errors and advice read these tables. A new field is one
// member and one line of its table.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ns_dist/names.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist {

// One field that a user sets: {"plan/tp", "8"}.
struct Assignment {
  std::string field, text;
  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// Several values of a field.
struct FieldValues {
  std::string field;
  std::vector<std::string> values;
  friend bool operator==(const FieldValues&, const FieldValues&) = default;
};

inline constexpr std::int64_t kMostOfAField = 1'000'000'000;

struct Field {
  std::string_view name;               // "plan/tp"
  std::string_view help = "";          // without the default
  std::string_view values = "";        // "ID|FILE"; empty: from the type ("N", "on|off", names of enumerators)
  std::string_view default_text = "";  // where the default depends on other fields
  std::string_view flag = "";          // "--seq", where it is not the key with - for _
  std::int64_t least = 1;              // of a whole number
  std::int64_t most = kMostOfAField;   // the same
  std::span<const std::string_view> names = {};  // of the enumerators that a user may choose, where these are not all
  bool in_every_report = false;  // else a report of an earlier version has none, which means the default

  // "tp" of "plan/tp": the key of JSON objects.
  constexpr std::string_view key() const { return name.substr(name.rfind('/') + 1); }
};

// "--micro-batch" of "training/micro_batch".
std::string flag_of(const Field& field);

template <class T, class Struct>
concept OrConst = std::same_as<std::remove_const_t<T>, Struct>;

// Reads `text` into `value`. Errors have `where` = field.name and what was expected.
Result<void> read_field(const Field& field, std::string_view text, std::int64_t& value);
Result<void> read_field(const Field& field, std::string_view text, bool& value);  // on, off
Result<void> read_field(const Field& field, std::string_view text, std::string& value);
Result<void> read_field(const Field& field, std::string_view text, BytesPerSecond& value);  // of a link, with unit
Result<void> read_field(const Field& field, std::string_view text, Seconds& value);         // at most 1 s, with unit
Result<void> read_field(const Field& field, std::string_view text,
                        std::vector<double>& value);  // "1,0.9,1", or nothing
// A number with its range, its default and an example, which `Kind` knows.
template <class Kind>
struct BoundedNumber {
  double value = Kind::kDefault;
  friend bool operator==(const BoundedNumber&, const BoundedNumber&) = default;
};
struct FractionKind {
  static constexpr std::string_view kName = "part of a whole";
  static constexpr double kDefault = 0, kLeast = 0, kMost = 1, kExample = 0.5;
};
using Fraction = BoundedNumber<FractionKind>;
// How much larger the largest is than the mean.
struct ImbalanceKind {
  static constexpr std::string_view kName = "largest share over the mean";
  static constexpr double kDefault = 1, kLeast = 1, kMost = 1000, kExample = 1.5;
};
using Imbalance = BoundedNumber<ImbalanceKind>;
// Places over what an even share needs; 0: as many as are needed.
struct CapacityFactorKind {
  static constexpr std::string_view kName = "capacity over an even share";
  static constexpr double kDefault = 0, kLeast = 0, kMost = 1000, kExample = 1.25;
};
using CapacityFactor = BoundedNumber<CapacityFactorKind>;
// A number from `least` to `most`; errors call it `name`.
Result<double> read_number(const Field& field, std::string_view text, std::string_view name, double least, double most,
                           double example);
template <class Kind>
Result<void> read_field(const Field& field, std::string_view text, BoundedNumber<Kind>& value) {
  NS_TRY(value.value, read_number(field, text, Kind::kName, Kind::kLeast, Kind::kMost, Kind::kExample));
  return {};
}
template <class Enum>
requires std::is_enum_v<Enum> Result<void> read_field(const Field& field, std::string_view text, Enum& value);
template <class T>
Result<void> read_field(const Field& field, std::string_view text, std::optional<T>& value) {
  return read_field(field, text, value.emplace());
}

// Whether a value is one text of its own form, also in files.
template <class T>
inline constexpr bool kHasOwnText = false;
template <class T>
concept HasOwnText = kHasOwnText<T>;

// A set of enumerators, whose values are 0, 1, 2, ...
using EnumSet = std::uint32_t;
template <class Enum>
requires std::is_enum_v<Enum>
constexpr EnumSet set_of(Enum value) { return EnumSet{1} << static_cast<unsigned>(value); }
// "core_attn,mlp": some of `names`, the enumerators' own. `expected`: what the whole field may be.
Result<EnumSet> read_set(const Field& field, std::string_view text, std::span<const std::string_view> names,
                         std::string_view expected);
std::string set_text(EnumSet set, std::span<const std::string_view> names);

// The text that read_field reads back.
std::string field_text(std::int64_t value);
std::string field_text(bool value);
std::string field_text(const std::string& value);
std::string field_text(BytesPerSecond value);
std::string field_text(Seconds value);
std::string field_text(const std::vector<double>& value);
std::string field_text(double value);
template <class Kind>
std::string field_text(const BoundedNumber<Kind>& value) {
  return field_text(value.value);
}
template <class Enum>
requires std::is_enum_v<Enum> std::string field_text(Enum value) { return std::string(name_of(value)); }
template <class T>
std::string field_text(const std::optional<T>& value) {
  return value ? field_text(*value) : "";
}

// A whole number: digits, and a minus before them where it is negative ("8", not "8x", "1e3", "+8" or "8.0"). Errors
// have no place and no hint.
Result<std::int64_t> read_whole_number(std::string_view text, std::int64_t least, std::int64_t most);
// Whether it is one, of any size.
bool is_whole_number(std::string_view text);
// The position of `text`, in whatever case, among `names` (in lower case). Errors list the names and tell the nearest,
// without a place.
Result<std::size_t> read_name(std::string_view text, std::span<const std::string_view> names);
// The enumerator of that name; errors as of read_name.
template <class Enum>
Result<Enum> read_enumerator(std::string_view text) {
  NS_TRY(const std::size_t position, read_name(text, names_of<Enum>()));
  return static_cast<Enum>(position);
}
// Above 0 and at most `most`. Errors have no place.
Result<double> read_positive_number(std::string_view text, double most);

template <class Enum>
requires std::is_enum_v<Enum> Result<void> read_field(const Field& field, std::string_view text, Enum& value) {
  constexpr std::span<const std::string_view> kAll = names_of<Enum>();
  const auto chosen = read_name(text, field.names.empty() ? kAll : field.names);
  if (!chosen) {
    Error error = chosen.error();
    error.where = field.name;
    return fail(std::move(error));
  }
  value = *read_enumerator<Enum>(text);
  return {};
}

// Sets the field of `table` that `assignment` names; nothing when there is no such field.
template <class Table>
std::optional<Result<void>> assign_field(Table& table, const Assignment& assignment) {
  std::optional<Result<void>> done;
  visit_fields(
      [&](const Field& field, auto& value) {
        if (field.name == assignment.field) done = read_field(field, assignment.text, value);
      },
      table);
  return done;
}

// All fields of `table`, in its order.
template <class Table>
std::vector<Assignment> assignments_of(const Table& table) {
  std::vector<Assignment> all;
  visit_fields(
      [&all](const Field& field, const auto& value) {
        all.push_back({std::string(field.name), field_text(value)});
      },
      table);
  return all;
}

// What turns `from` into `to`.
template <class Table>
std::vector<Assignment> differences(const Table& from, const Table& to) {
  const std::vector<Assignment> before = assignments_of(from), after = assignments_of(to);
  std::vector<Assignment> changes;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i] != before[i]) changes.push_back(after[i]);
  }
  return changes;
}

}  // namespace ns_dist
