// What a PyTorch operator computes, from its name and the shapes and types of its inputs as Chakra's converter writes
// them: "[[64, 3, 7, 7], [64]]", "['Tensor(float)', 'Int']".
#pragma once

#include <optional>
#include <string_view>

#include "ns_dist/chakra_io.h"
#include "ns_dist/operator.h"

namespace ns_dist::chakra {

// `name`: "aten::mm". Nothing where the operator is unknown, or its inputs are not as it takes them.
std::optional<Operator> pytorch_operator(std::string_view name, const TraceTensors& inputs);

}  // namespace ns_dist::chakra
