#include "ns_dist/operator_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/operator_members.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/operator_forms.h"

namespace ns_dist {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7f || c == '%' || c == '|' || c == '=') {
      out += fmt::format("%{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

bool unescape(std::string_view text, std::string* out) {
  out->clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    unsigned byte = 0;
    if (text.size() - i < 3) return false;
    const auto [end, failed] = std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
    if (failed != std::errc() || end != text.data() + i + 3) return false;
    *out += static_cast<char>(byte);
    i += 2;
  }
  return true;
}

std::string written(std::int64_t value) { return std::to_string(value); }
std::string written(double value) { return fmt::format("{}", value); }
std::string written(bool value) { return value ? "1" : "0"; }
std::string written(const std::string& value) { return escaped(value); }
std::string written(Bytes value) { return written(value / units::B); }
std::string written(Flops value) { return written(value / units::FLOP); }
template <class Enum>
requires std::is_enum_v<Enum> std::string written(Enum value) { return std::string(name_of(value)); }

template <class Number>
bool read_number(std::string_view text, Number* out) {
  const auto number = number_from<Number>(text);
  if (number) *out = *number;
  return number.has_value();
}
bool read(std::string_view text, std::int64_t* out) { return read_number(text, out); }
bool read(std::string_view text, double* out) { return read_number(text, out); }
bool read(std::string_view text, bool* out) {
  *out = text == "1";
  return text == "1" || text == "0";
}
bool read(std::string_view text, std::string* out) { return unescape(text, out); }
bool read(std::string_view text, Bytes* out) {
  double value = 0;
  if (!read(text, &value)) return false;
  *out = value * units::B;
  return true;
}
bool read(std::string_view text, Flops* out) {
  double value = 0;
  if (!read(text, &value)) return false;
  *out = value * units::FLOP;
  return true;
}
template <class Enum>
requires std::is_enum_v<Enum>
bool read(std::string_view text, Enum* out) {
  const auto known = enumerator_from_name<Enum>(text);
  if (known) *out = *known;
  return known.has_value();
}

// What a member's value may be.
std::string values_of(const std::int64_t&) { return "a whole number"; }
std::string values_of(const double&) { return "a number"; }
std::string values_of(const Bytes&) { return "a number of bytes"; }
std::string values_of(const Flops&) { return "a number of FLOPs"; }
std::string values_of(const bool&) { return "1 or 0"; }
std::string values_of(const std::string&) { return "a name"; }
template <class Enum>
requires std::is_enum_v<Enum> std::string values_of(const Enum&) {
  return fmt::format("{}", fmt::join(names_of<Enum>(), ", "));
}

template <std::size_t... Is>
bool make_kind(std::string_view name, OperatorKind* out, std::index_sequence<Is...>) {
  return ((name == operator_forms()[Is].family ? (out->emplace<Is>(), true) : false) || ...);
}

tl::unexpected<Error> wrong(std::string message, std::string expected) {
  return fail({ErrorCode::kInvalidInput, std::move(message), "", std::move(expected)});
}

}  // namespace

std::string to_spec(const Operator& op) {
  std::string out;
  std::visit(
      [&]<class Kind>(const Kind& kind) {
        out = fmt::format("{} dtype={}", family_of(op), name_of(op.dtype));
        const Kind usual;
        std::vector<std::string> defaults;
        visit_members(usual, [&](std::string_view, const auto& value) { defaults.push_back(written(value)); });
        std::size_t i = 0;
        visit_members(kind, [&](std::string_view name, const auto& value) {
          const std::string text = written(value);
          if (text != defaults[i++]) out += fmt::format(" {}={}", name, text);
        });
      },
      op.kind);
  return out;
}

Result<Operator> operator_from_spec(std::string_view spec) {
  const auto word = [&spec] {
    const std::size_t end = spec.find(' ');
    const std::string_view first = spec.substr(0, end);
    spec = end == std::string_view::npos ? std::string_view() : spec.substr(end + 1);
    return first;
  };
  Operator op;
  const std::string_view kind = word();
  if (!make_kind(kind, &op.kind, std::make_index_sequence<std::variant_size_v<OperatorKind>>())) {
    return wrong(fmt::format("unknown operator \"{}\"", kind.substr(0, 40)), "gemm, attention, elementwise, ...");
  }
  std::vector<std::string_view> given;
  while (!spec.empty()) {
    const std::string_view assignment = word();
    const std::size_t equals = assignment.find('=');
    const std::string_view name = assignment.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : assignment.substr(equals + 1);
    bool known = false, good = false;
    std::string expected;
    const auto take = [&](auto& to) {
      known = true;
      good = read(value, &to);
      if (!good) expected = values_of(to);
    };
    if (std::find(given.begin(), given.end(), name) != given.end()) {
      return wrong(fmt::format("{} has \"{}\" twice", kind, name.substr(0, 40)), "each member once");
    }
    given.push_back(name);
    if (name == "dtype") {
      take(op.dtype);
    } else {
      std::visit(
          [&](auto& one) {
            visit_members(one, [&](std::string_view member, auto& to) {
              if (member == name) take(to);
            });
          },
          op.kind);
    }
    if (!known) {
      std::vector<std::string> names{"dtype"};
      std::visit(
          [&](auto& one) { visit_members(one, [&](std::string_view member, auto&) { names.emplace_back(member); }); },
          op.kind);
      return wrong(fmt::format("{} has no \"{}\"", kind, name.substr(0, 40)),
                   fmt::format("{}", fmt::join(names, ", ")));
    }
    if (!good) return wrong(fmt::format("{}={} of {}", name, value.substr(0, 40), kind), std::move(expected));
  }
  NS_TRY_VOID(validate(op));
  return op;
}

Result<std::vector<Operator>> operators_from_specs(std::string_view specs) {
  std::vector<Operator> out;
  for (const std::string_view spec : split_at(specs, "|")) {
    NS_TRY(Operator op, operator_from_spec(spec));
    out.push_back(std::move(op));
  }
  return out;
}

}  // namespace ns_dist
