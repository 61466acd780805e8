// What the commands on traces read beside them, and how they tell what is wrong.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ns_dist/astra_formulas.h"
#include "ns_dist/astra_network.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/files.h"
#include "ns_dist/result.h"

namespace ns_dist::cli {

inline constexpr std::size_t kLargestAstraInput = 256 * kMebibyte;

// `given`, or `name` beside the traces where nothing is given.
std::filesystem::path beside(const TraceSet& traces, const std::string& given, const char* name);

// The communicator groups of `traces`: those of `path`; where it is empty, of comm_groups.json beside them, if it is
// there. ASTRA-Sim takes a path that holds the word "empty" for none.
Result<CommGroups> groups_beside(const TraceSet& traces, const std::string& path);

// What to do where traces name groups and no file of groups was read; empty: nothing.
std::string hint_of_groups(const CommGroups& groups, const std::vector<TraceProblem>& problems);

// "rank 3, node 17 (mlp.fc1): ...".
std::string text_of(const TraceProblem& problem);
// "rank 3 waits for rank 4 (node 17, a message with tag 9)".
std::string text_of(const TraceWait& wait);
nlohmann::ordered_json json_of(const std::vector<TraceProblem>& problems);
nlohmann::ordered_json json_of(const std::vector<TraceWait>& deadlock);

// ASTRA-Sim's network yml and system json. Errors: those of read_text and read_astra_system.
Result<AstraSystem> system_of(const std::filesystem::path& yml, const std::filesystem::path& json);
// How it says that kernels are timed; without a network.
ReplayOptions rules_of(const AstraSystem& system);
// Its formulas; `network` must outlive them. Errors that lie in a key of the system json name this key of `json`.
ReplayNetwork network_of(const AstraNetwork& network, const std::filesystem::path& json);

}  // namespace ns_dist::cli
