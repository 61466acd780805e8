#include "astra/phases.h"

#include <fmt/format.h>

#include <cmath>

namespace ns_dist {
namespace astra {
namespace {

constexpr const char* kSplitsKey = "preferred-dataset-splits";

bool runs(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
}

// One chunk through all dimensions that have an algorithm: reduce-scatter and all-to-all go up, all-gather down; what a
// phase leaves is what the next one gets. The all-gathers of an all-reduce go around their rings backward (its
// QueueLevelHandler::get_next_queue_id_last).
std::vector<Phase> phases_of(const std::vector<Dimension>& all, CollectiveKind kind, Int c, bool local_aware) {
  std::vector<std::size_t> dims;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].algorithm().empty()) dims.push_back(i);
  }
  std::vector<Phase> phases;
  Int size = c;
  const auto up = [&](std::size_t last, CollectiveKind phase) {
    for (std::size_t i = 0; i < last; ++i) {
      phases.push_back({dims[i], phase, size});
      if (phase == CollectiveKind::kReduceScatter) size /= all[dims[i]].n();
    }
  };
  const auto down = [&](std::size_t first, bool backward) {
    for (std::size_t i = first; i-- > 0;) {
      phases.push_back({dims[i], CollectiveKind::kAllGather, size, backward});
      size = times(size, all[dims[i]].n());
    }
  };
  if (dims.empty()) return phases;
  if (kind == CollectiveKind::kAllGather) {
    down(dims.size(), false);
  } else if (kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll || !local_aware) {
    up(dims.size(), kind);
  } else {
    up(dims.size() - 1, CollectiveKind::kReduceScatter);
    phases.push_back({dims.back(), CollectiveKind::kAllReduce, size});
    down(dims.size() - 1, true);
  }
  return phases;
}

}  // namespace

Result<std::vector<Dimension>> dimensions_of(const AstraSystem& system, CollectiveKind kind) {
  std::vector<Dimension> dims;
  for (std::size_t i = 0; i < system.dimensions.size(); ++i) {
    const AstraDimension& d = system.dimensions[i];
    if (d.npus < 2 || !(d.bandwidth_gib > 0) || !(d.latency_ns >= 0) || !std::isfinite(d.latency_ns)) {
      return fail({ErrorCode::kInvalidInput, fmt::format("dimension {} of the network", i), "",
                   "at least 2 NPUs, a positive bandwidth, a latency of at least zero"});
    }
    dims.push_back({&d, &system, system.endpoint_delay_ns, kind});
  }
  if (dims.empty()) return fail({ErrorCode::kInvalidInput, "a network without dimensions", ""});
  return dims;
}

Result<Chunks> chunks_of(const AstraSystem& system, CollectiveKind kind, Int comm_size) {
  if (!runs(kind)) {
    return fail({ErrorCode::kInvalidInput, fmt::format("ASTRA-Sim runs no {}", name_of(kind)), "",
                 "all_reduce, all_gather, reduce_scatter or all_to_all"});
  }
  if (comm_size > kMostAstraBytes || system.splits > kMostAstraBytes) return too_long();
  if (comm_size < 1 || system.splits < 1 || system.active_chunks < 1) {
    return fail({ErrorCode::kInvalidInput, "sizes, splits and active chunks below one", "", "positive numbers"});
  }
  const Int c = astra_chunk(system, kind, comm_size);
  if (c < 1) {
    return no_form("an all-gather of fewer bytes than splits (it never ends)", kSplitsKey,
                   fmt::format("at most {}", comm_size));
  }
  const Int count = c > comm_size / system.splits ? system.splits : ceil_div(comm_size, c);  // raised: all are
  return Chunks{c, ceil_div(count, system.active_chunks), count};
}

Error no_algorithm(CollectiveKind kind) {
  return {ErrorCode::kInvalidInput, fmt::format("the system has no algorithm for {}", name_of(kind)),
          "#/" + key_of(kind), "one for each dimension of the network"};
}

Result<PhasedCollective> phased(const AstraSystem& system, CollectiveKind kind, Int comm_size) {
  PhasedCollective out;
  NS_TRY(out.dimensions, dimensions_of(system, kind));
  NS_TRY(out.chunks, chunks_of(system, kind, comm_size));
  out.phases = phases_of(out.dimensions, kind, out.chunks.size, system.local_bandwidth_aware);
  if (out.phases.empty()) return fail(no_algorithm(kind));
  if (out.phases.size() > 1 && out.chunks.count > 1) {
    return no_form("several chunks on several dimensions", kSplitsKey, "1");
  }
  return out;
}

}  // namespace astra

Result<std::int64_t> astra_time_ns(const AstraSystem& system, CollectiveKind kind, std::int64_t comm_size) {
  using namespace astra;
  NS_TRY(const PhasedCollective whole, phased(system, kind, comm_size));
  const Chunks& chunks = whole.chunks;
  if (system.congestion_aware && (whole.dimensions.size() > 1 || (chunks.count > 1 && system.active_chunks > 1))) {
    return no_form("several dimensions or active chunks with congestion");
  }
  Int one = 0;
  for (const Phase& phase : whole.phases) {
    const Dimension& dimension = whole.dimensions[phase.dimension];
    NS_TRY(const Int time, dimension.chunk(phase.kind, dimension.algorithm(), phase.size));
    one += time;
    if (one >= kNineYears) return too_long();
  }
  return checked(times(chunks.rounds, one));
}

}  // namespace ns_dist
