// An operator as one line of text that can be read back without loss, for attributes of traces.
//
//   to_spec(op);                                  // "gemm dtype=bf16 m=8192 n=9216 k=12288 layout=tn"
//   operator_from_spec("gemm dtype=bf16 m=8 n=8 k=8");
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/operator.h"
#include "ns_dist/result.h"

namespace ns_dist {

// The kind, the number format, and every member that differs from its default, in the order of the struct. Names of
// members are those of operator.h, with what they count in units of FLOP and bytes. Blanks and "%|=" of names are
// written as "%" and two hexadecimal digits.
std::string to_spec(const Operator& op);

// Errors: an unknown kind, member or value; dimensions that validate() refuses.
Result<Operator> operator_from_spec(std::string_view spec);

// Several with "|" between them, as traces write kernels that were merged.
Result<std::vector<Operator>> operators_from_specs(std::string_view specs);

}  // namespace ns_dist
