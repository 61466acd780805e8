// `ns-dist search --sweep`: every combination of a file's values, forecast one by one.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "arguments.h"
#include "ns_dist/result.h"

namespace ns_dist::cli {

// Errors: a file that cannot be read, or is larger than 16 MiB.
Result<std::string> read_file(const std::string& path, std::string_view flag, std::string_view expected);

// Forecasts the rows of the sweep in the file `input` and adds them to `output`, one JSON object a line, behind a line
// that tells which sweep it is. Rows that are there already are not forecast again; a line that was not finished is.
// Flags give the values of fields that the sweep does not vary. Returns the exit code; errors have been printed.
int sweep(const std::string& input, const std::string& output, const WorkFlags& flags, unsigned threads,
          const std::atomic<bool>& stop);

}  // namespace ns_dist::cli
