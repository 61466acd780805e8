// The choice of keys by an indexer (Indexer of ns_dist/model.h), which compressed and latent attention have.
#pragma once

#include "blocks/common.h"

namespace ns_dist::blocks {

// A step with the products of `rows` queries and of the weights of their scores. An indexer learns by a loss of its
// own, which is left out: no kernel of it has a gradient.
BlockStep indexer(const Shape& shape, std::int64_t rows, std::int64_t q_rank);
// A product of the indexer: `in` to `out` channels of `rows`.
void index_product(const Shape& shape, BlockStep& step, std::string_view name, std::int64_t rows, std::int64_t out,
                   std::int64_t in);
// Scores of `rows` queries against the keys before them, of which a sequence has `all`, and the choice of the best.
void choose_keys(const Shape& shape, BlockStep& step, std::int64_t rows, std::int64_t all);
// How many of `all` keys a query reads: all, if these are not more than are chosen.
std::int64_t chosen_keys(const Shape& shape, std::int64_t all);
// Tokens of other context-parallel ranks: `columns` of each of this rank's `rows`.
void gather_context(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t rows,
                    std::int64_t columns);

// Attention in which each query reads keys of its own: `slots` keys of `key_dim` channels, one head for all heads of
// queries, of which the first `value_dim` channels are the values. Scores and log-sum-exp are its own; what it reads is
// not kept here.
BlockStep chosen_core(const Shape& shape, std::int64_t slots, std::int64_t key_dim, std::int64_t value_dim);

}  // namespace ns_dist::blocks
