#include "ns_dist/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "ns_dist/internal/trimmed.h"

namespace ns_dist::detail {
namespace {

struct UnitName {
  std::string_view name;
  double scale;
  Dimension dimension;
};

constexpr Dimension kTime{1, 0, 0, 0}, kData{0, 1, 0, 0}, kWork{0, 0, 1, 0}, kEnergy{0, 0, 0, 1}, kRate{-1, 0, 0, 0},
    kPower{-1, 0, 0, 1}, kWorkRate{-1, 0, 1, 0}, kDataRate{-1, 1, 0, 0};

// Within a dimension from small to large, decimal units only for output; `format_in_base` relies on that order.
constexpr std::array<UnitName, 51> kUnits = {{
    {"ps", 1e-12, kTime},
    {"ns", 1e-9, kTime},
    {"us", 1e-6, kTime},
    {"ms", 1e-3, kTime},
    {"s", 1, kTime},
    {"min", 60, kTime},
    {"h", 3600, kTime},
    {"bit", 0.125, kData},
    {"B", 1, kData},
    {"kB", 1e3, kData},
    {"MB", 1e6, kData},
    {"GB", 1e9, kData},
    {"TB", 1e12, kData},
    {"PB", 1e15, kData},
    {"EB", 1e18, kData},
    {"KiB", 1024.0, kData},
    {"MiB", 1048576.0, kData},
    {"GiB", 1073741824.0, kData},
    {"TiB", 1099511627776.0, kData},
    {"kbit", 0.125e3, kData},
    {"Mbit", 0.125e6, kData},
    {"Gbit", 0.125e9, kData},
    {"Tbit", 0.125e12, kData},
    {"FLOP", 1, kWork},
    {"kFLOP", 1e3, kWork},
    {"MFLOP", 1e6, kWork},
    {"GFLOP", 1e9, kWork},
    {"TFLOP", 1e12, kWork},
    {"PFLOP", 1e15, kWork},
    {"EFLOP", 1e18, kWork},
    {"Hz", 1, kRate},
    {"kHz", 1e3, kRate},
    {"MHz", 1e6, kRate},
    {"GHz", 1e9, kRate},
    {"pJ", 1e-12, kEnergy},
    {"J", 1, kEnergy},
    {"kJ", 1e3, kEnergy},
    {"mW", 1e-3, kPower},
    {"W", 1, kPower},
    {"kW", 1e3, kPower},
    {"MW", 1e6, kPower},
    {"Wh", 3600, kEnergy},
    {"kWh", 3.6e6, kEnergy},
    {"GFLOPS", 1e9, kWorkRate},  // as data sheets write them
    {"TFLOPS", 1e12, kWorkRate},
    {"PFLOPS", 1e15, kWorkRate},
    {"GBps", 1e9, kDataRate},
    {"TBps", 1e12, kDataRate},
    {"Mbps", 0.125e6, kDataRate},
    {"Gbps", 0.125e9, kDataRate},
    {"Tbps", 0.125e12, kDataRate},
}};

const UnitName* find_unit(std::string_view name) {
  for (const UnitName& unit : kUnits) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

// What a quantity of this dimension is called, and how one is written.
struct Example {
  Dimension dimension;
  std::string_view noun, text;
};
constexpr std::array<Example, 9> kExamples = {{
    {{1, 0, 0, 0}, "a duration", "1.5 us"},
    {{0, 1, 0, 0}, "an amount of data", "80 GiB"},
    {{0, 0, 1, 0}, "an amount of work", "2.5 TFLOP"},
    {{-1, 1, 0, 0}, "a bandwidth", "3.35 TB/s"},
    {{-1, 0, 1, 0}, "a compute rate", "989.4 TFLOP/s"},
    {{-1, 0, 0, 0}, "a frequency", "1980 MHz"},
    {{-1, 0, 0, 1}, "a power", "700 W"},
    {{0, 0, 0, 1}, "an energy", "5 J"},
    {{0, -1, 1, 0}, "an arithmetic intensity", "295 FLOP/B"},
}};

Example example_of(Dimension dimension) {
  for (const Example& example : kExamples) {
    if (example.dimension == dimension) return example;
  }
  return {dimension, "a quantity", "1 B"};
}

Error error(std::string message, Dimension expected) {
  const Example example = example_of(expected);
  return {ErrorCode::kInvalidInput, std::move(message), "", fmt::format("{} with its unit", example.noun),
          fmt::format("write it like \"{}\"", example.text)};
}

}  // namespace

Result<double> parse_in_base(std::string_view text, Dimension expected) {
  const std::string_view figure = trimmed(text);
  double number = 0;
  const auto [rest, status] = std::from_chars(figure.data(), figure.data() + figure.size(), number);
  if (status == std::errc::result_out_of_range) {
    return fail(error(fmt::format("\"{}\" is out of range", text), expected));
  }
  if (status != std::errc() || !std::isfinite(number)) {
    return fail(error(fmt::format("\"{}\" does not start with a number", text), expected));
  }
  const std::string_view unit_text = trimmed(figure.substr(static_cast<std::size_t>(rest - figure.data())));
  if (unit_text.empty()) return fail(error(fmt::format("\"{}\" has no unit", text), expected));

  const std::size_t slash = unit_text.find('/');
  const std::string_view over = trimmed(unit_text.substr(0, slash));
  const UnitName* numerator = find_unit(over);
  if (numerator == nullptr) {
    const bool bits = over.ends_with('b');
    return fail(error(
        fmt::format("\"{}\" is not a unit known here{}", over, bits ? " (bits are \"bit\", as in \"200 Gbit/s\")" : ""),
        expected));
  }
  double scale = numerator->scale;
  Dimension dimension = numerator->dimension;
  if (slash != std::string_view::npos) {
    const std::string_view under = trimmed(unit_text.substr(slash + 1));
    const UnitName* denominator = find_unit(under);
    if (denominator == nullptr) return fail(error(fmt::format("\"{}\" is not a unit known here", under), expected));
    scale /= denominator->scale;
    dimension.time -= denominator->dimension.time;
    dimension.data -= denominator->dimension.data;
    dimension.work -= denominator->dimension.work;
    dimension.energy -= denominator->dimension.energy;
  }
  if (!(dimension == expected)) {
    return fail(error(fmt::format("\"{}\" is {}", text, example_of(dimension).noun), expected));
  }
  const double value = number * scale;
  if (!std::isfinite(value)) return fail(error(fmt::format("\"{}\" is out of range", text), expected));
  return value;
}

std::string format_in_base(double value, Dimension dimension) {
  // The numerator carries the scale; "/s" or "/B" follows for rates and intensities.
  std::string_view suffix;
  Dimension over = dimension;
  const bool named = dimension == kRate || dimension == kPower;
  if (!named && dimension.time == -1) {
    suffix = "/s";
    over.time = 0;
  } else if (dimension.data == -1) {
    suffix = "/B";
    over.data = 0;
  }
  const UnitName *below = nullptr, *best = nullptr, *above = nullptr;
  for (const UnitName& unit : kUnits) {
    const bool decimal =
        unit.name.find("bit") == std::string_view::npos && unit.name.find('i') == std::string_view::npos;
    if (!(unit.dimension == over) || !decimal || unit.name == "h" || unit.name.ends_with("Wh")) continue;
    if (best == nullptr || std::abs(value) >= unit.scale || (value == 0 && unit.scale == 1)) {
      below = std::exchange(best, &unit);
      above = nullptr;
    } else if (above == nullptr) {
      above = &unit;
    }
  }
  if (best == nullptr) return fmt::format("{} (base units)", value);
  // The text must read back as the value, and not every double survives the division and the multiplication. What was
  // read from a text of up to 15 digits gives them back in its own unit; base units give back every value.
  const auto text_in = [&](const UnitName* unit, int digits) -> std::string {  // empty: not the value
    if (unit == nullptr) return {};
    const std::string text = fmt::format("{:.{}g}", value / unit->scale, digits);
    double scaled = 0;
    std::from_chars(text.data(), text.data() + text.size(), scaled);
    return scaled * unit->scale == value ? fmt::format("{} {}{}", scaled, unit->name, suffix) : "";
  };
  if (std::string text = text_in(best, 15); !text.empty()) return text;
  std::string text = text_in(above, 15);
  if (std::string other = text_in(below, 15); text.empty() || (!other.empty() && other.size() < text.size())) {
    text = std::move(other);
  }
  if (text.empty()) text = text_in(best, 17);
  if (!text.empty()) return text;
  for (const UnitName& unit : kUnits) {
    if (unit.dimension == over && unit.scale == 1) return fmt::format("{} {}{}", value, unit.name, suffix);
  }
  return fmt::format("{} (base units)", value);
}

}  // namespace ns_dist::detail

namespace ns_dist {

std::string duration_text(Seconds seconds) {
  const double value = seconds / units::s;
  const double size = std::fabs(value);
  if (size >= 9999.5 && size < 1e9) {  // four digits, without a power of ten
    const double digit = std::pow(10, std::floor(std::log10(size)) - 3);
    return fmt::format("{:.0f} s", std::round(value / digit) * digit);
  }
  if (size == 0) return "0 s";
  const auto digits = [](double number) {  // four significant ones, with zeros at the end
    int decimals = 0;
    for (double below = 999.95; decimals < 3 && std::fabs(number) < below; below /= 10) ++decimals;
    return std::fabs(number) < 0.99995 ? fmt::format("{:.4g}", number) : fmt::format("{:.{}f}", number, decimals);
  };
  if (size >= 1) return digits(value) + " s";
  return size >= 1e-3 ? digits(value * 1e3) + " ms" : digits(value * 1e6) + " us";
}

}  // namespace ns_dist
