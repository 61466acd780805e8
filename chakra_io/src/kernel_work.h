// What the attributes of a node tell about a kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/chakra_io.h"

namespace ns_dist::chakra {

// Longer durations are none.
inline constexpr double kLongestNs = 1e18;
inline bool is_time(double ns) { return ns >= 0 && ns < kLongestNs; }

// A number of any type; nothing where it is missing or none.
std::optional<double> number_at(const TraceNode& node, std::string_view name);
// The stream of a kernel ("tid"), from -1e15 to 1e15; nothing where the node names none.
std::optional<std::int64_t> stream_at(const TraceNode& node);
// Empty where it is missing or no text.
std::string text_at(const TraceNode& node, std::string_view name);

// Our attribute ns_dist_factor, as text; empty where it is missing.
std::string factors_at(const TraceNode& node);
// Of each of so many operators: of "1.3" 1.3 for all, of "1|1.3" one after the other, of no text none. Error: a text
// that is none of so many positive numbers; its place is left to the caller.
Result<std::vector<double>> factors_from(std::string_view text, std::size_t operators);

// The name of the PyTorch operator: "aten::mm" of a schema "aten::mm(Tensor self, ...", or of a name "aten::mm(1)".
std::string operator_name(const TraceNode& node);

// Whether it moves and computes nothing, as the wait for a host's launches: only its duration is known.
bool is_wait(const Operator& op);

// Whether num_ops tells a duration, as TraceEncoding::kRoofline writes it, and no work.
bool work_is_time(const TraceNode& node);

}  // namespace ns_dist::chakra
