// The commands of ns-dist, one source file each.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace ns_dist::cli {

struct Command {
  std::string_view name, summary;
  // argv without the program's and the command's name. Returns the exit code; errors have been printed.
  int (*run)(int argc, const char* const* argv);
};

int simulate_command(int argc, const char* const* argv);
int search_command(int argc, const char* const* argv);
int export_command(int argc, const char* const* argv);
int annotate_command(int argc, const char* const* argv);
int lint_command(int argc, const char* const* argv);
int replay_command(int argc, const char* const* argv);
int explain_command(int argc, const char* const* argv);
int explain_step_command(int argc, const char* const* argv);  // explain step
int kernels_command(int argc, const char* const* argv);
int collectives_command(int argc, const char* const* argv);
int calibrate_command(int argc, const char* const* argv);
int fit_command(int argc, const char* const* argv);
int list_command(int argc, const char* const* argv);
int validate_command(int argc, const char* const* argv);
int version_command(int argc, const char* const* argv);

// The flags of simulate and of search. An error of another command names the one that has a flag.
std::vector<std::string> simulate_flags();
std::vector<std::string> search_flags();

inline constexpr std::array<Command, 14> kCommands = {{
    {"simulate", "what does one step of this training plan take, does it fit, where does the time go?",
     simulate_command},
    {"search", "which plan is best on this cluster, and how large must the cluster be?", search_command},
    {"export", "the plan as Chakra traces, one file a rank, and the inputs ASTRA-Sim needs beside them",
     export_command},
    {"annotate", "kernel durations of somebody's Chakra traces for another GPU", annotate_command},
    {"lint", "what is wrong with these Chakra traces, rank by rank, node by node?", lint_command},
    {"replay", "these Chakra traces by ASTRA-Sim's rules: how long, or who waits for whom?", replay_command},
    {"explain", "how did a number come about: a step, an operator on a GPU, a collective on a cluster",
     explain_command},
    {"kernels", "how long does this operator take on this GPU? one, or a CSV of them", kernels_command},
    {"collectives", "how long does this collective take on this cluster? one, or a CSV of them", collectives_command},
    {"calibrate", "a correction for your GPU or cluster from a few measurements", calibrate_command},
    {"fit", "weights of the kernel and network models from measurements", fit_command},
    {"list", "gpus, models, clusters, fabrics, frameworks, runs, schedules, operators and more", list_command},
    {"validate", "how far off are our forecasts of steps, kernels and collectives that others measured?",
     validate_command},
    {"version", "which build is this?", version_command},
}};

}  // namespace ns_dist::cli
