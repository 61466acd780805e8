// Signals that end the program.
#pragma once

#include <atomic>

namespace ns_dist::cli {

// SIGHUP, SIGINT and SIGTERM remove what is unfinished and then end the program as they do by default (a shell sees
// 129, 130, 143). A closed pipe and a file beyond the limit of the shell are errors of writing instead. Call it before
// the first thread begins.
void watch_signals();

// From now on the first SIGINT sets this, for work that can stop early and answer. One that comes a second later, or
// after that, ends the program; `timeout` sends two at once.
const std::atomic<bool>& stop_at_interrupt();

// Ends the program by SIGPIPE, silently, if standard output is a pipe that nobody reads any more.
void end_if_nobody_reads();

}  // namespace ns_dist::cli
