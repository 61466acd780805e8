// `ns-dist search --sweep`: every combination of a file's values, forecast one by one.
#pragma once

#include <atomic>
#include <string>

#include "arguments.h"
#include "team_of_mpi.h"

namespace ns_dist::cli {

// Forecasts the rows of the sweep in the file `input` and adds them to `output`, one JSON object a line, behind a line
// that tells which sweep it is; or, where `output` ends in .csv, lines of a CSV, whose last column tells it. Rows that
// are there already are not forecast again; a line that was not finished is.
// One process at a time writes into `output`.
// The members of a team share the rows; the first of them writes.
// Flags give the values of fields that the sweep does not vary. Returns the exit code; errors have been printed.
int sweep(const std::string& input, const std::string& output, const WorkFlags& flags, unsigned threads,
          const std::atomic<bool>& stop, MpiTeam* team);

}  // namespace ns_dist::cli
