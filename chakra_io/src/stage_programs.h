// The step as each pipeline stage's ranks run it: one list of operations a stage, in an order that cannot deadlock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ns_dist/chakra_io.h"

namespace ns_dist::chakra {

enum class Role : std::uint8_t { kKernel, kCollective, kSend, kReceive };

// An operation's id in the trace is its place in the stage's list, counted from 1. Its dependencies have lower ids.
struct Operation {
  NodeId node = kNoNode;
  Role role = Role::kKernel;
  std::uint32_t slot = 0;   // into StageProgram::groups or ::peers
  std::uint32_t part = 0;   // of a collective that is several, one after the other: which one (astra_exchanges)
  std::uint32_t tag = 0;    // of a message: unlike that of any other between the same two stages
  std::uint32_t after = 0;  // id of the collective or message before it in the rank's chain; 0: none
  // Merged kernels become one operation: its chain in StageProgram::chains, counted from 1. 0: `node` is not merged.
  std::uint32_t chain = 0;
};

// Whom messages go to and come from: the rank of `stage` with the same other coordinates, or the next and the previous
// rank of a ring in the stage.
struct Peer {
  std::int64_t stage = 0;
  Stride ring = {};  // one rank: none
  friend bool operator==(const Peer&, const Peer&) = default;
};

struct StageProgram {
  std::vector<Operation> operations;
  std::vector<std::uint64_t> offsets;     // into depends_on; one more than operations
  std::vector<std::uint32_t> depends_on;  // ids of what each operation needs, ascending
  std::vector<RankGroup> groups;          // groups of the stage's representative, in order of first use
  std::vector<Peer> peers;                // in order of first use
  std::vector<std::vector<NodeId>> chains;

  std::span<const std::uint32_t> dependencies(std::size_t operation) const {
    return {depends_on.data() + offsets[operation], depends_on.data() + offsets[operation + 1]};
  }
};

// One of the ways to write the same ordered list of ranks, the same for all: no strides of one, neighbors merged.
RankGroup canonical(const RankGroup& group);

// `node_gpus`: as in ExportOptions. Errors: those of write_traces that lie in the graph.
Result<std::vector<StageProgram>> lower(const ExecutionGraph& graph, const Timeline& timeline, std::int64_t node_gpus);

// Makes one operation of each chain of kernels with nothing between them: a kernel that waits for one other alone,
// which nothing else waits for. A stage with kernels on several lanes stays as it is: there another kernel could run
// between two of a chain. Then no other operation starts or ends at another time.
void merge_kernels(const ExecutionGraph& graph, StageProgram* program);

}  // namespace ns_dist::chakra
