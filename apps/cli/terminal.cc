#include "terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "interrupts.h"
#include "ns_dist/energy.h"
#include "ns_dist/scenario.h"

namespace ns_dist::cli {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

bool has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = environment(name);
    if (!value.empty())
      return value.find("UTF-8") != std::string_view::npos || value.find("utf8") != std::string_view::npos;
  }
  return false;
}

// Empty when there is no such field.
std::string flag_of_field(std::string_view name) {
  for (const FieldDescription& description : scenario_fields()) {
    if (description.field.name == name) return description.flag;
  }
  return "";
}

std::string colored(bool color, std::string_view code, std::string_view text) {
  return color ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

}  // namespace

std::string with_flags(std::string_view text) {
  constexpr std::string_view kNameLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.#-";  // a longer name or a path is no field
  std::string result;
  const auto keep = [&](std::size_t count) {
    result += text.substr(0, count);
    text.remove_prefix(std::min(count, text.size()));
  };
  while (!text.empty()) {
    if (text.front() == '"') {  // what the user wrote stays as it is
      const std::size_t end = text.find('"', 1);
      keep(end == std::string_view::npos ? 1 : end + 1);
      continue;
    }
    keep(std::min({text.find_first_of(kNameLetters), text.find('"'), text.size()}));
    if (text.empty() || text.front() == '"') continue;
    std::string_view name = text.substr(0, text.find_first_not_of(kNameLetters));
    while (name.size() > 1 && name.ends_with('.')) name.remove_suffix(1);
    const bool assigned = text.substr(name.size()).starts_with('=');
    const std::string flag = name.find('/') != std::string_view::npos || assigned ? flag_of_field(name) : "";
    result += flag.empty() ? name : flag;
    text.remove_prefix(name.size());
    if (!flag.empty() && assigned) {
      result += ' ';
      text.remove_prefix(1);
    }
  }
  return result;
}

Error with_flags(Error error) {
  if (error.where.find("#/") == std::string::npos) {  // a file names fields as it has them
    const std::string flag = flag_of_field(error.where);
    error.where = flag.empty() ? with_flags(error.where) : flag;
    error.message = with_flags(error.message);
    error.expected = with_flags(error.expected);
    error.hint = with_flags(error.hint);
  }
  for (Error& more : error.also) more = with_flags(std::move(more));
  return error;
}

int report_error(const Error& error) {
  end_if_nobody_reads();  // a reader that has seen enough is no mistake
  std::string text = to_text(with_flags(error));
  while (text.ends_with('\n')) text.pop_back();
  std::fputs(fmt::format("ns-dist: {}\n", text).c_str(), stderr);
  return exit_code(error);
}

int exit_code(const Error& error) { return error.code == ErrorCode::kUsage ? kUsage : kInputAtFault; }

std::string Style::bold(std::string_view text) const { return colored(color, "1", text); }
std::string Style::dim(std::string_view text) const { return colored(color, "2", text); }
std::string Style::red(std::string_view text) const { return colored(color, "31", text); }
std::string Style::green(std::string_view text) const { return colored(color, "32", text); }

std::string Style::bar(double share, int width) const {
  const double filled = std::clamp(share, 0.0, 1.0) * width;
  std::string text;
  if (!blocks) return text.append(static_cast<std::size_t>(std::lround(filled)), '#');
  static constexpr std::array<std::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const long eighths = std::lround(8 * filled);
  for (long i = 0; i < eighths / 8; ++i) text += "█";
  return colored(color, "36", text + std::string(kEighths[static_cast<std::size_t>(eighths % 8)]));
}

Style style_of(std::FILE* stream) {
  if (stream != stdout) return {};
  // Open MPI gives its first process a terminal, wherever the output of mpirun goes.
  const bool terminal = isatty(STDOUT_FILENO) == 1 && environment("OMPI_COMM_WORLD_SIZE").empty();
  Style style{terminal && environment("NO_COLOR").empty() && environment("TERM") != "dumb", has_utf8()};
  constexpr unsigned short kLeast = 60;
  winsize size{};
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.columns = std::max(kLeast, size.ws_col);
  }
  return style;
}

namespace {

// A character that takes a column: no part of an escape sequence, and of UTF-8 the first byte.
std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  bool escape = false;
  for (const char c : text) {
    if (c == '\033') escape = true;
    if (!escape && (static_cast<unsigned char>(c) & 0xC0U) != 0x80U) ++columns;
    if (c == 'm') escape = false;
  }
  return columns;
}

// Where the lines below the first begin: below the text of a fact, or two columns behind the begin of the line.
std::size_t indent_of(std::string_view line) {
  constexpr std::size_t kFact = 16;
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const bool fact = begin == 2 && line.size() > kFact && line[kFact - 1] == ' ' && line[kFact] != ' ' &&
                    line.substr(begin, kFact - begin).find("  ") != std::string_view::npos;
  return fact || begin == kFact ? kFact : begin + 2;
}

}  // namespace

std::string wrapped(const std::string& text, const Style& style) {
  if (style.columns == 0) return text;
  std::string result;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    const std::size_t indent = indent_of(line);
    const bool command = line.starts_with("  ns-dist ");
    std::size_t width = style.columns, from = indent;
    while (!command && columns_of(line) > width) {
      std::size_t cut = std::string_view::npos;  // the last blank before the end of the line
      for (std::size_t blank = line.find(' ', from); blank != std::string_view::npos;
           blank = line.find(' ', blank + 1)) {
        if (columns_of(line.substr(0, blank)) > width) break;
        if (line[blank - 1] != ' ') cut = blank;
      }
      if (cut == std::string_view::npos) break;
      result += line.substr(0, cut);
      result += '\n' + std::string(indent, ' ');
      line.remove_prefix(line.find_first_not_of(' ', cut));
      width = style.columns - indent;
      from = 1;
    }
    result += line;
    if (end < text.size()) result += '\n';
  }
  return result;
}

std::string bytes_text(Bytes bytes) {
  const double gib = bytes / units::GiB;
  if (gib >= 0.95) return fmt::format("{:.1f} GiB", gib);
  if (bytes >= units::MiB) return fmt::format("{:.1f} MiB", bytes / units::MiB);
  return fmt::format("{:.0f} B", bytes / units::B);
}

std::string bandwidth_text(BytesPerSecond bandwidth) {
  const double gigabytes = bandwidth / (units::GB / units::s);
  return gigabytes >= 1e3 ? fmt::format("{:.4g} TB/s", gigabytes / 1e3) : fmt::format("{:.4g} GB/s", gigabytes);
}

std::string energy_text(Joules energy) {
  const double hours = energy / kKilowattHour;
  if (std::isinf(hours)) return "endless";
  if (hours >= 1e6) return fmt::format("{:.4g} GWh", hours / 1e6);
  if (hours >= 1e3) return fmt::format("{:.4g} MWh", hours / 1e3);
  return hours >= 1 ? fmt::format("{:.4g} kWh", hours) : fmt::format("{:.4g} Wh", 1e3 * hours);
}

}  // namespace ns_dist::cli
