// Text for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "ns_dist/internal/with_commas.h"
#include "ns_dist/result.h"
#include "ns_dist/units.h"

namespace ns_dist::cli {

inline constexpr int kAnswered = 0, kInputAtFault = 1, kUsage = 2, kOurBug = 70;

// Libraries name fields ("plan/dp", "plan/dp=8"); a user knows flags ("--dp", "--dp 8"). Everything else stays.
std::string with_flags(std::string_view text);
Error with_flags(Error error);

// Prints the error, with flags, on standard error and returns its exit code.
int report_error(const Error& error);
int exit_code(const Error& error);

// Colors and block characters as standard output can show them.
struct Style {
  bool color = false, blocks = false;
  std::size_t columns = 0;  // of the terminal, at least 60; 0: none
  std::string bold(std::string_view text) const;
  std::string dim(std::string_view text) const;
  std::string red(std::string_view text) const;
  std::string green(std::string_view text) const;
  // A bar of `width` columns of which `share` (0 to 1) is filled; no trailing blanks.
  std::string bar(double share, int width) const;
};

// Of a text that goes to `stream`. No colors unless that is standard output and a terminal, and none with NO_COLOR
// (no-color.org) or TERM=dumb.
Style style_of(std::FILE* stream);

// Lines that are longer than the terminal go on in the next one, below where their text begins. Commands, which are
// copied, and everything that goes to no terminal stay as they are.
std::string wrapped(const std::string& text, const Style& style);

std::string bytes_text(Bytes bytes);                   // "38.2 GiB"
std::string bandwidth_text(BytesPerSecond bandwidth);  // "933 GB/s", "3.35 TB/s"
std::string energy_text(Joules energy);                // "629 Wh", "1.645 kWh", "522.9 MWh", "36.2 GWh"

}  // namespace ns_dist::cli
