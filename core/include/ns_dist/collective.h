// Collectives and point-to-point messages between ranks.
#pragma once

#include <array>
#include <string_view>

#include "ns_dist/names.h"
#include "ns_dist/rank_group.h"
#include "ns_dist/routing.h"
#include "ns_dist/units.h"

namespace ns_dist {

enum class CollectiveKind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSendRecv,  // group of two: sender first
};

// As nccl-tests spells them.
template <>
inline constexpr auto kEnumeratorNames<CollectiveKind> =
    std::to_array<std::string_view>({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
                                     "gather", "scatter", "barrier", "send_recv"});

// `size` is the full buffer, as nccl-tests counts it: all-reduce the buffer, all-gather the gathered output,
// reduce-scatter the whole input, all-to-all the send buffer of a rank, send_recv the message.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes size;
  RankGroup group;
  bool integer = false;  // elements are integers, which switches do not reduce (NVLS)
  // Of an uneven all-to-all (all-to-all-v): bytes through the port of the busiest rank, in or out, over the mean; from
  // 1 (even) to the number of ranks. `size` is the mean. 1 for all other collectives.
  double imbalance = 1;
  // Of an all-to-all of tokens to the ranks' experts, or back, that sends one copy of a token to each node that it goes
  // to, where the copies for the node's other ranks are made (DeepEP). `size` is one copy for each rank that a token
  // goes to. No experts: every rank sends to every rank.
  Routing routing = {};
  // A send_recv may be one message of a ring: each rank sends to the next, the last one to the first. These are the
  // ranks of the sender's ring; `group` is the pair whose message is forecast. One rank: no ring.
  Stride ring = {};
  // Or it may be a message between stages of a pipeline, each of which sends to the next: these are the stages.
  Stride stages = {};
  friend bool operator==(const Collective&, const Collective&) = default;
};

}  // namespace ns_dist
