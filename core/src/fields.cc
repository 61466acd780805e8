#include "ns_dist/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/internal/trimmed.h"
#include "ns_dist/internal/with_commas.h"

namespace ns_dist {
namespace {

constexpr BytesPerSecond kFastest = 1000 * units::TB / units::s, kSlowest = 1 * units::MB / units::s;
constexpr double kFastestStage = 1000;  // relative to the GPU

Error mistake(std::string message, std::string expected, std::string hint = "") {
  return {ErrorCode::kInvalidInput, std::move(message), "", std::move(expected), std::move(hint)};
}

tl::unexpected<Error> fail_at(const Field& field, Error error, std::string hint = "") {
  error.where = field.name;
  if (!hint.empty()) error.hint = std::move(hint);
  return fail(std::move(error));
}

}  // namespace

std::string flag_of(const Field& field) {
  if (!field.flag.empty()) return std::string(field.flag);
  std::string flag = "--" + std::string(field.key());
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

bool is_whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status != std::errc::invalid_argument && end == text.data() + text.size();
}

Result<std::int64_t> read_whole_number(std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = is_whole_number(text);
  if (whole && status == std::errc() && value >= least && value <= most) return value;
  return fail(
      mistake(whole ? fmt::format("{} is out of range", text) : fmt::format("\"{}\" is not a whole number", text),
              fmt::format("a whole number from {} to {}", least, with_commas(most))));
}

Result<std::size_t> read_name(std::string_view text, std::span<const std::string_view> names) {
  const auto found = std::find(names.begin(), names.end(), lower_case(text));
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  const std::string near = nearest_name(text, {names.begin(), names.end()});
  return fail(mistake(fmt::format("\"{}\" is not one of its values", text),
                      fmt::format("one of {}", fmt::join(names, ", ")), did_you_mean(near)));
}

Result<EnumSet> read_set(const Field& field, std::string_view text, std::span<const std::string_view> names,
                         std::string_view expected) {
  EnumSet set = 0;
  for (const std::string_view part : split_at(text, ",")) {
    const auto found = read_name(trimmed(part), names);
    if (!found) {
      return fail({ErrorCode::kInvalidInput, found.error().message, std::string(field.name), std::string(expected),
                   fmt::format("the modules are {}", fmt::join(names, ", "))});
    }
    set |= EnumSet{1} << *found;
  }
  return set;
}

std::string set_text(EnumSet set, std::span<const std::string_view> names) {
  std::vector<std::string_view> members;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if ((set & EnumSet{1} << i) != 0) members.push_back(names[i]);
  }
  return fmt::format("{}", fmt::join(members, ","));
}

Result<double> read_positive_number(std::string_view text, double most) {
  const auto value = number_from<double>(text);
  if (value && *value > 0 && *value <= most) return *value;
  return fail(mistake(fmt::format("\"{}\" cannot be used", text), fmt::format("a number above 0, at most {}", most)));
}

// What to write instead of a text that is no whole number: "8k" are 8192.
static std::string digits_of(const Field& field, std::string_view text) {
  if (is_whole_number(text)) return "";
  if (text.find(',') != std::string_view::npos) {
    std::string digits(text);
    std::erase(digits, ',');
    const auto grouped = number_from<std::int64_t>(digits);
    if (grouped && with_commas(*grouped) == text)
      return fmt::format("write {}={}, without commas", field.name, *grouped);
    return "one value: a search tries several";
  }
  constexpr std::int64_t kKibi = 1024;
  std::int64_t example = field.least + 7;
  if (!text.empty()) {
    const char unit = text.back();
    const std::int64_t times = unit == 'k' || unit == 'K' ? kKibi : unit == 'm' || unit == 'M' ? kKibi * kKibi : 0;
    const auto number = number_from<std::int64_t>(text.substr(0, text.size() - 1));
    if (times > 0 && number && *number > 0 && *number <= field.most / times) example = *number * times;
  }
  return fmt::format("write digits only, as in {}={}", field.name, example);
}

Result<void> read_field(const Field& field, std::string_view text, std::int64_t& value) {
  const auto number = read_whole_number(text, field.least, field.most);
  if (!number) return fail_at(field, number.error(), digits_of(field, text));
  value = *number;
  return {};
}

Result<void> read_field(const Field& field, std::string_view text, bool& value) {
  static constexpr std::array<std::string_view, 2> kSwitch = {"off", "on"};
  const auto chosen = read_name(text, kSwitch);
  if (!chosen) return fail_at(field, chosen.error());
  value = *chosen == 1;
  return {};
}

Result<void> read_field(const Field&, std::string_view text, std::string& value) {
  value = text;
  return {};
}

Result<void> read_field(const Field& field, std::string_view text, BytesPerSecond& value) {
  const auto parsed = parse_quantity<BytesPerSecond>(text);
  if (!parsed) return fail_at(field, parsed.error());
  if (!(*parsed >= kSlowest) || *parsed > kFastest) {
    return fail_at(field, mistake(fmt::format("\"{}\" is no bandwidth of a link", text), "1 MB/s to 1000 TB/s",
                                  "write, for example, \"50 GB/s\""));
  }
  value = *parsed;
  return {};
}

Result<void> read_field(const Field& field, std::string_view text, Seconds& value) {
  const auto parsed = parse_quantity<Seconds>(text);
  if (!parsed) return fail_at(field, parsed.error());
  if (*parsed < Seconds() || *parsed > 1.0 * units::s) {
    return fail_at(field,
                   mistake(fmt::format("\"{}\" is out of range", text), "0 s to 1 s", "write, for example, \"60 us\""));
  }
  value = *parsed;
  return {};
}

Result<void> read_field(const Field& field, std::string_view text, std::vector<double>& value) {
  std::vector<double> numbers;
  if (text.empty()) {
    value.clear();
    return {};
  }
  for (const std::string_view part : split_at(text, ",")) {
    const auto number = read_positive_number(trimmed(part), kFastestStage);
    const std::string hint = fmt::format("write, for example, {}=1,0.9,1,1", field.name);
    if (!number) return fail_at(field, number.error(), hint);
    if (*number < 1 / kFastestStage) {
      return fail_at(
          field,
          mistake(fmt::format("a speed of {}", *number), fmt::format("{} to {}", 1 / kFastestStage, kFastestStage)),
          hint);
    }
    numbers.push_back(*number);
  }
  value = std::move(numbers);
  return {};
}

Result<double> read_number(const Field& field, std::string_view text, std::string_view name, double least, double most,
                           double example) {
  const auto number = number_from<double>(text);
  if (number && *number >= least && *number <= most) return *number;
  return fail_at(
      field, mistake(fmt::format("\"{}\" is no {}", text, name), fmt::format("a number from {:g} to {:g}", least, most),
                     fmt::format("write, for example, {}={:g}", field.name, example)));
}

std::string field_text(std::int64_t value) { return fmt::format("{}", value); }
std::string field_text(bool value) { return value ? "on" : "off"; }
std::string field_text(const std::string& value) { return value; }
std::string field_text(BytesPerSecond value) { return to_text(value); }
std::string field_text(Seconds value) { return to_text(value); }
std::string field_text(double value) { return fmt::format("{}", value); }
std::string field_text(const std::vector<double>& value) { return fmt::format("{}", fmt::join(value, ",")); }

}  // namespace ns_dist
