// ASTRA-Sim's analytical network backends as closed forms: what its simulator answers, to the nanosecond, for one
// collective of all NPUs. A reference to compare with, not our forecast: it has no protocols and, in the unaware
// backend, no contention between messages.
//
// ASTRA-Sim at 518bd513, astra-network-analytical at 599a0473.
#pragma once

#include <cstdint>
#include <memory>

#include "ns_dist/astra_network.h"
#include "ns_dist/cluster.h"
#include "ns_dist/collective.h"
#include "ns_dist/cost.h"
#include "ns_dist/result.h"

namespace ns_dist {

// Finish time of one collective of all NPUs that starts at 0, in ns. `comm_size` is the trace's attribute: the buffer
// of all-reduce, reduce-scatter and all-to-all, a rank's own shard for all-gather, bytes. Errors: no closed form is
// known (several dimensions with several chunks, the congestion-aware backend with several active chunks or with direct
// exchange on a ring, direct all-reduce on a ring of more than three), a dimension below 2 NPUs, a collective that it
// does not run.
Result<std::int64_t> astra_time_ns(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size);

// Collectives as ASTRA-Sim's unaware backend times them on the network that to_astra gives: groups that fill the
// levels that they span run dimension by dimension, every other group as one flat ring. A ring uses one link of a GPU
// at a time, so on a FullyConnected dimension it leaves the other links idle, there as here.
// Errors: as make_network_model; at forecast: collectives that ASTRA-Sim does not run.
Result<std::unique_ptr<NetworkCost>> make_astra_model(const Cluster& cluster);

}  // namespace ns_dist
