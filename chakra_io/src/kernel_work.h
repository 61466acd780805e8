// What the attributes of a node tell about a kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ns_dist/chakra_io.h"

namespace ns_dist::chakra {

// A number of any type; nothing where it is missing or none.
std::optional<double> number_at(const TraceNode& node, std::string_view name);
// Empty where it is missing or no text.
std::string text_at(const TraceNode& node, std::string_view name);

// The name of the PyTorch operator: "aten::mm" of a schema "aten::mm(Tensor self, ...", or of a name "aten::mm(1)".
std::string operator_name(const TraceNode& node);

// Whether it moves and computes nothing, as the wait for a host's launches: only its duration is known.
bool is_wait(const Operator& op);

// Whether num_ops tells a duration, as TraceEncoding::kRoofline writes it, and no work.
bool work_is_time(const TraceNode& node);

}  // namespace ns_dist::chakra
