// The experts of one rank: how many rows they get, and how these travel.
#pragma once

#include <cstdint>
#include <string_view>

#include "blocks/common.h"

namespace ns_dist::blocks {

// What the busiest rank has, for which the others wait: tokens of `imbalance` times as many as under balanced routing,
// which its experts share evenly. Where experts are padded to a capacity, all ranks have the same: as many rows of each
// expert as it has places, from each rank (Megatron-Core, moe_utils.py, get_capacity).
struct LocalExperts {
  explicit LocalExperts(const Shape& shape);

  // Of this rank's tokens: each expert's even share, or the places that it has for them.
  static std::int64_t copies_of_tokens(const Shape& shape);
  // Writes of a token where its rows are summed, for each of them.
  double once() const { return (one_copy ? copies : 1) / static_cast<double>(top_k); }

  std::int64_t top_k;    // experts of a token
  std::int64_t routed;   // token copies that this rank sends to experts
  double imbalance;      // of what ranks receive
  std::int64_t rows;     // token copies that this rank's experts receive, all of them together
  std::int64_t width;    // of a row
  std::int64_t experts;  // of this rank
  std::int64_t ffn;      // of one expert on this rank
  bool one_copy;         // a rank gets a token once, however many of its experts process it
  bool to_all;           // or none of them
  double copies;         // of a token that travel: for each rank that gets it, or for each expert
  Bytes exchanged;       // all of them, in the mean
  std::int64_t summed;   // rows that this rank makes of tokens, and sums up
  Bytes gathered;        // over the tensor-parallel group
  bool casts_before;     // rows travel to experts in the products' format: tokens, and gradients of experts' outputs
  double to_experts;     // bytes of what travels so, over those in the storage format
};

// Whether a class of transformers writes experts out (integrations/moe.py), and whether in one kernel for all
// (grouped_mm_experts_forward). One GPU has all experts whole then.
bool writes_experts_out(const Shape& shape);
bool experts_in_one_kernel(const Shape& shape);
// In one kernel, rows that belong to no expert become zeros behind each step, and so do their gradients.
void mask_rows(const Shape& shape, BlockStep& step, std::string_view name, std::int64_t elements);

}  // namespace ns_dist::blocks
