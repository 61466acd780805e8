#include "stage_programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "kernel_work.h"
#include "ns_dist/astra_network.h"
#include "rules.h"

namespace ns_dist::chakra {
namespace {

Error graph_error(std::string message, std::string expected = {}, std::string hint = {}) {
  return {ErrorCode::kInvalidInput, std::move(message), "execution graph", std::move(expected), std::move(hint)};
}

// What a work item is in a trace.
struct WorkClass {
  Role role = Role::kKernel;
  bool dropped = false;              // one rank talking to itself
  RankGroup group;                   // canonical; of a ring of messages, the ring
  std::vector<RankGroup> parts;      // groups of the collectives that it is, one after the other
  bool ring = false;                 // each rank of the group sends to the next
  std::vector<std::int64_t> stages;  // whose ranks take part, ascending; empty: the stage of the node's lane
  bool crosses() const { return role == Role::kCollective && stages.size() > 1; }
};

class Lowering {
 public:
  Lowering(const ExecutionGraph& graph, const Timeline& timeline, std::int64_t node_gpus)
      : graph_(graph), timeline_(timeline), node_gpus_(node_gpus) {}

  Result<std::vector<StageProgram>> run() {
    NS_TRY_VOID(classify());
    NS_TRY_VOID(meet_across_stages());
    NS_TRY_VOID(order());
    NS_TRY_VOID(place());
    bridge();
    NS_TRY_VOID(connect());
    return std::move(programs_);
  }

 private:
  const WorkClass& class_of(NodeId node) const { return classes_[index(graph_.node(node).work)]; }
  std::int64_t stage_of(NodeId node) const { return ExecutionGraph::stage_of(graph_.node(node).lane); }
  double start_of(NodeId node) const { return timeline_.spans[index(node)].start / units::s; }

  std::string text_of(NodeId node) const {
    return fmt::format("node {} ({}, stage {})", index(node), graph_.work_of(node).name, stage_of(node));
  }

  // Whether the ranks of a stride are those that differ in one digit of a rank number that the mesh's strides divide.
  bool is_digit(const Stride& stride) const {
    for (const MeshAxis& axis : graph_.mesh().axes()) {
      if (stride.stride % axis.stride != 0 || stride.stride >= axis.stride * axis.size) continue;
      const std::int64_t span = stride.stride * stride.count, axis_span = axis.stride * axis.size;
      return axis_span % span == 0 || span % axis_span == 0;
    }
    return false;
  }

  Result<void> classify() {
    const std::int64_t ranks = graph_.mesh().ranks();
    if (graph_.mesh().size("pp") != graph_.stage_count()) {
      return fail(graph_error(
          fmt::format("the graph has {} stages, its mesh pp = {}", graph_.stage_count(), graph_.mesh().size("pp"))));
    }
    for (const WorkItem& item : graph_.works()) {
      WorkClass& out = classes_.emplace_back();
      if (const auto* message = std::get_if<Message>(&item.work)) {
        out.role = Role::kSend;
        out.stages = {message->from_stage, message->to_stage};
        out.dropped = message->from_stage == message->to_stage;
        if (std::min(message->from_stage, message->to_stage) < 0 ||
            std::max(message->from_stage, message->to_stage) >= graph_.stage_count()) {
          return fail(graph_error(
              fmt::format("message \"{}\" goes from stage {} to {}", item.name, message->from_stage, message->to_stage),
              fmt::format("stages from 0 to {}", graph_.stage_count() - 1)));
        }
      } else if (const auto* collective = std::get_if<Collective>(&item.work)) {
        out.role = Role::kCollective;
        out.ring = collective->kind == CollectiveKind::kSendRecv && collective->ring.count > 1;
        out.group = canonical(out.ring ? RankGroup{collective->group.first, {collective->ring}} : collective->group);
        out.dropped = out.group.size() == 1;
        if (out.dropped) continue;
        for (const Collective& part : astra_exchanges(*collective, node_gpus_)) {
          out.parts.push_back(canonical(part.group));
        }
        if (feeder_kind(collective->kind) == nullptr && !out.ring) {
          return fail(graph_error(
              fmt::format("ASTRA-Sim cannot run the {} \"{}\"", name_of(collective->kind), item.name),
              "all_reduce, all_gather, reduce_scatter, all_to_all or broadcast, or a message between stages"));
        }
        Rank last = out.group.first;
        for (const Stride& stride : out.group.strides) last += (stride.count - 1) * stride.stride;
        if (out.group.first < 0 || last >= ranks) {
          return fail(graph_error(fmt::format("the group of \"{}\" holds rank {}", item.name, last),
                                  fmt::format("ranks from 0 to {}", ranks - 1)));
        }
        const bool outermost = graph_.mesh().stride("pp") * graph_.mesh().size("pp") == ranks;
        for (const Stride& stride : out.group.strides) {
          if (outermost || is_digit(stride)) continue;
          return fail(
              graph_error(fmt::format("the group of \"{}\" is not the same for all ranks: {} ranks with a stride of {}",
                                      item.name, stride.count, stride.stride),
                          "pipeline stages as the outermost dimension", "write a plan/order that ends in pp"));
        }
        for (std::int64_t i = 0; i < out.group.size(); ++i) {
          const std::int64_t stage = graph_.mesh().coordinate(out.group.at(i), "pp");
          const auto place = std::lower_bound(out.stages.begin(), out.stages.end(), stage);
          if (place == out.stages.end() || *place != stage) out.stages.insert(place, stage);
        }
        if (out.ring && out.stages.size() > 1) {
          return fail(
              graph_error(fmt::format("the ring of \"{}\" crosses stages", item.name), "messages between stages"));
        }
      }
    }
    for (std::uint32_t n = 0; n < graph_.node_count(); ++n) {
      const WorkClass& work = class_of(NodeId{n});
      if (work.role == Role::kKernel || work.dropped) continue;
      if (std::find(work.stages.begin(), work.stages.end(), stage_of(NodeId{n})) == work.stages.end()) {
        return fail(graph_error(text_of(NodeId{n}) + " lies on a lane of a stage that takes no part in it"));
      }
    }
    return {};
  }

  // Collectives of several stages: the n-th of each stage, in launch order, are one; or one node represents all stages.
  Result<void> meet_across_stages() {
    leader_.resize(graph_.node_count());
    for (std::uint32_t n = 0; n < graph_.node_count(); ++n) leader_[n] = NodeId{n};
    using Key = std::pair<Rank, std::vector<std::pair<std::int64_t, std::int64_t>>>;
    std::map<Key, std::map<std::int64_t, std::vector<NodeId>>> calls;  // group -> stage -> nodes
    for (std::uint32_t n = 0; n < graph_.node_count(); ++n) {
      const WorkClass& work = class_of(NodeId{n});
      if (!work.crosses()) continue;
      Key key{work.group.first, {}};
      for (const Stride& stride : work.group.strides) key.second.emplace_back(stride.count, stride.stride);
      calls[key][stage_of(NodeId{n})].push_back(NodeId{n});
    }
    for (const auto& [key, by_stage] : calls) {
      if (by_stage.size() == 1) continue;  // one node represents every stage
      const std::vector<NodeId>& first = by_stage.begin()->second;
      const WorkClass& work = class_of(first.front());
      for (const auto& [stage, nodes] : by_stage) {
        if (nodes.size() != first.size() || by_stage.size() != work.stages.size()) {
          return fail(graph_error(
              fmt::format("\"{}\" joins {} stages; {} of them run it, stage {} {} times and stage {} {} times",
                          graph_.work_of(first.front()).name, work.stages.size(), by_stage.size(),
                          by_stage.begin()->first, first.size(), stage, nodes.size()),
              "every stage of a collective runs it equally often"));
        }
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          const auto& a = std::get<Collective>(graph_.work_of(first[i]).work);
          const auto& b = std::get<Collective>(graph_.work_of(nodes[i]).work);
          if (a.kind != b.kind || a.size != b.size) {
            return fail(graph_error(
                text_of(first[i]) + " and " + text_of(nodes[i]) + " meet in one group, and differ in kind or size",
                "the same sequence of collectives in every stage of a group"));
          }
          leader_[index(nodes[i])] = first[i];
          members_[index(first[i])].push_back(nodes[i]);
        }
      }
    }
    return {};
  }

  std::span<const NodeId> members_of(const NodeId& leader) const {
    const auto found = members_.find(index(leader));
    if (found == members_.end()) return {&leader, 1};
    return found->second;
  }

  template <class Visit>
  void for_each_predecessor(NodeId node, const Visit& visit) const {
    for (const NodeId on : graph_.dependencies(node)) visit(on);
    if (graph_.previous_on_lane(node) != kNoNode) visit(graph_.previous_on_lane(node));
  }

  // One order of everything: by dependencies, then by start.
  Result<void> order() {
    const std::uint32_t count = graph_.node_count();
    NS_EXPECTS(timeline_.spans.size() == count);
    std::vector<std::uint64_t> first(count + std::size_t{1}, 0);
    std::vector<std::uint32_t> waiting(count, 0);
    const auto for_each_edge = [&](const auto& visit) {
      for (std::uint32_t n = 0; n < count; ++n) {
        const std::uint32_t to = index(leader_[n]);
        for_each_predecessor(NodeId{n}, [&](NodeId on) {
          if (index(leader_[index(on)]) != to) visit(index(leader_[index(on)]), to);
        });
      }
    };
    for_each_edge([&](std::uint32_t from, std::uint32_t to) { ++first[from + std::size_t{1}], ++waiting[to]; });
    for (std::uint32_t n = 0; n < count; ++n) first[n + std::size_t{1}] += first[n];
    std::vector<std::uint32_t> successors(first.back());
    std::vector<std::uint64_t> fill(first.begin(), first.end() - 1);
    for_each_edge([&](std::uint32_t from, std::uint32_t to) { successors[fill[from]++] = to; });

    std::vector<double> start(count);
    std::uint32_t leaders = 0;
    for (std::uint32_t n = 0; n < count; ++n) {
      double& latest = start[index(leader_[n])];
      latest = std::max(latest, start_of(NodeId{n}));
      leaders += leader_[n] == NodeId{n} ? 1U : 0U;
    }
    using Entry = std::pair<double, std::uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    for (std::uint32_t n = 0; n < count; ++n) {
      if (leader_[n] == NodeId{n} && waiting[n] == 0) ready.emplace(start[n], n);
    }
    order_.reserve(leaders);
    while (!ready.empty()) {
      const std::uint32_t n = ready.top().second;
      ready.pop();
      order_.push_back(NodeId{n});
      for (std::uint64_t e = first[n]; e < first[n + std::size_t{1}]; ++e) {
        if (--waiting[successors[e]] == 0) ready.emplace(start[successors[e]], successors[e]);
      }
    }
    if (order_.size() == leaders) return {};
    std::uint32_t stuck = 0;
    while (leader_[stuck] != NodeId{stuck} || waiting[stuck] == 0) ++stuck;
    return fail(graph_error(text_of(NodeId{stuck}) + " depends on itself",
                            "no cycle, and the collectives of each group in the same order in every stage"));
  }

  // Gives every operation its place in its stages' programs.
  Result<void> place() {
    const auto stages = static_cast<std::size_t>(graph_.stage_count());
    programs_.resize(stages);
    ids_.assign(graph_.node_count(), 0);
    receive_ids_.assign(graph_.node_count(), 0);
    std::vector<std::uint32_t> last_in_slot(stages, 0);
    std::map<std::pair<std::int64_t, LaneId>, std::uint32_t> last_receive;    // stage, lane -> id
    std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> last_tag;  // stages
    const auto append = [&](std::int64_t stage, Operation operation) {
      auto& operations = programs_[static_cast<std::size_t>(stage)].operations;
      operations.push_back(operation);
      const auto id = static_cast<std::uint32_t>(operations.size());
      if (operation.role == Role::kCollective || operation.role == Role::kSend) {
        operations.back().after = std::exchange(last_in_slot[static_cast<std::size_t>(stage)], id);
      }
      return id;
    };
    for (const NodeId node : order_) {
      const WorkClass& work = class_of(node);
      if (work.dropped) continue;
      if (work.role == Role::kKernel) {
        ids_[index(node)] = append(stage_of(node), {node, Role::kKernel});
      } else if (work.role == Role::kCollective && !work.ring) {
        for (const std::int64_t stage : work.crosses() ? work.stages : std::vector{stage_of(node)}) {
          std::uint32_t id = 0;
          for (std::uint32_t part = 0; part < work.parts.size(); ++part) {
            id = append(stage, {node, Role::kCollective, group_slot(stage, work.parts[part]), part});
          }
          if (stage == stage_of(node)) {
            ids_[index(node)] = id;
          } else {
            far_ids_[{index(node), stage}] = id;
          }
        }
      } else {
        const std::int64_t from = work.stages.front(), to = work.stages.back();
        const Stride ring = work.ring ? work.group.strides.front() : Stride();
        std::uint32_t& tag = last_tag[{from, to}];
        if (++tag == kTags) return fail(graph_error(fmt::format("more messages than {}", kTags - 1)));
        ids_[index(node)] = append(from, {node, Role::kSend, peer_slot(from, {to, ring}), 0, tag});
        std::uint32_t& last = last_receive[{to, graph_.node(node).lane}];
        last = receive_ids_[index(node)] =
            append(to, {node, Role::kReceive, peer_slot(to, {from, ring}), 0, tag, last});
      }
    }
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (programs_[stage].operations.empty()) return fail(graph_error(fmt::format("stage {} has no work", stage)));
    }
    return {};
  }

  std::uint32_t group_slot(std::int64_t stage, const RankGroup& group) {
    auto& groups = programs_[static_cast<std::size_t>(stage)].groups;
    // Moved to the stage's own representative: a group of several stages is the same whoever looks at it.
    const RankGroup own = group.of(representative(graph_.mesh(), stage));
    const auto found = std::find(groups.begin(), groups.end(), own);
    if (found != groups.end()) return static_cast<std::uint32_t>(found - groups.begin());
    groups.push_back(own);
    return static_cast<std::uint32_t>(groups.size() - 1);
  }

  std::uint32_t peer_slot(std::int64_t stage, const Peer& peer) {
    auto& peers = programs_[static_cast<std::size_t>(stage)].peers;
    const auto found = std::find(peers.begin(), peers.end(), peer);
    if (found != peers.end()) return static_cast<std::uint32_t>(found - peers.begin());
    peers.push_back(peer);
    return static_cast<std::uint32_t>(peers.size() - 1);
  }

  // The id under which stage `stage` knows `node`: of several operations the last one, of a ring's the send; 0 when it
  // takes no part.
  std::uint32_t id_of(NodeId node, std::int64_t stage) const {
    const NodeId leader = leader_[index(node)];
    const WorkClass& work = class_of(leader);
    if (work.role == Role::kSend) {
      return stage == work.stages[0] ? ids_[index(leader)] : stage == work.stages[1] ? receive_ids_[index(leader)] : 0;
    }
    if (stage == stage_of(leader)) return ids_[index(leader)];
    const auto found = far_ids_.find({index(leader), stage});
    return found == far_ids_.end() ? 0 : found->second;
  }

  // For each node that is left out: the nodes that whoever waits for it has to wait for instead. Of several on one lane
  // the last represents all, which keeps the lists as short as there are lanes.
  void bridge() {
    std::vector<std::uint32_t> place(graph_.node_count(), 0);
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      for (const NodeId member : members_of(order_[i])) place[index(member)] = i;
    }
    for (const NodeId node : order_) {
      if (!class_of(node).dropped) continue;
      std::map<std::pair<LaneId, std::int64_t>, NodeId> last;  // by lane and, of messages, receiver
      for_each_predecessor(node, [&](NodeId on) {
        for (const NodeId kept : kept_of(on)) {
          const WorkClass& work = class_of(kept);
          const std::int64_t receiver = work.role == Role::kSend ? work.stages[1] : -1;
          const auto [found, added] = last.try_emplace({graph_.node(kept).lane, receiver}, kept);
          if (!added && place[index(found->second)] < place[index(kept)]) found->second = kept;
        }
      });
      std::vector<NodeId>& bridged = bridged_[index(node)];
      for (const auto& [lane, kept] : last) bridged.push_back(kept);
    }
  }

  std::span<const NodeId> kept_of(const NodeId& node) const {
    if (!class_of(node).dropped) return {&node, 1};
    return bridged_.at(index(node));
  }

  Result<void> connect() {
    for (std::size_t s = 0; s < programs_.size(); ++s) {
      StageProgram& program = programs_[s];
      const auto stage = static_cast<std::int64_t>(s);
      program.offsets.push_back(0);
      std::vector<std::uint32_t> ids;
      for (std::size_t i = 0; i < program.operations.size(); ++i) {
        Operation& operation = program.operations[i];
        if (operation.part > 0) {  // waits for the part before, which is the operation before
          operation.after = 0;
          program.depends_on.push_back(static_cast<std::uint32_t>(i));
          program.offsets.push_back(program.depends_on.size());
          continue;
        }
        ids.clear();
        Result<void> reachable;
        for (const NodeId member : members_of(operation.node)) {
          for_each_predecessor(member, [&](const NodeId& on) {
            for (const NodeId kept : kept_of(on)) {
              if (const std::uint32_t id = id_of(kept, stage); id != 0) {
                ids.push_back(id);
                if (class_of(kept).ring) ids.push_back(receive_ids_[index(leader_[index(kept)])]);
              } else if (reachable && !meets_somewhere(kept, member)) {
                reachable = fail(graph_error(
                    text_of(member) + " waits for " + text_of(kept) + " of another stage, and no message joins them",
                    "a message between stages on the way"));
              }
            }
          });
        }
        if (!reachable) return reachable;
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        // Between collectives and messages, a lane's own order is implied by their chain.
        if (const NodeId before = graph_.previous_on_lane(operation.node); before != kNoNode) {
          const std::uint32_t id = id_of(before, stage);
          const auto given = graph_.dependencies(operation.node);
          if (id != 0 && chained(program.operations[id - 1].role, operation.role) &&
              std::none_of(given.begin(), given.end(), [&](NodeId on) { return id_of(on, stage) == id; })) {
            std::erase(ids, id);
          }
        }
        if (std::binary_search(ids.begin(), ids.end(), operation.after)) operation.after = 0;
        program.depends_on.insert(program.depends_on.end(), ids.begin(), ids.end());
        program.offsets.push_back(program.depends_on.size());
      }
    }
    return {};
  }

  static bool chained(Role before, Role after) {
    const auto takes_slot = [](Role role) { return role == Role::kCollective || role == Role::kSend; };
    return after == Role::kReceive ? before == Role::kReceive : takes_slot(before) && takes_slot(after);
  }

  // Whether some stage runs both, so that the dependency is told there.
  bool meets_somewhere(NodeId on, NodeId node) const {
    const WorkClass& work = class_of(node);
    if (work.role == Role::kKernel) return id_of(on, stage_of(node)) != 0;
    return std::any_of(work.stages.begin(), work.stages.end(), [&](std::int64_t s) { return id_of(on, s) != 0; });
  }

  const ExecutionGraph& graph_;
  const Timeline& timeline_;
  std::int64_t node_gpus_;
  std::vector<WorkClass> classes_;                                  // by WorkId
  std::vector<NodeId> leader_;                                      // by NodeId: the node that represents it
  std::unordered_map<std::uint32_t, std::vector<NodeId>> members_;  // of leaders that represent several
  std::vector<NodeId> order_;                                       // leaders
  std::vector<StageProgram> programs_;
  std::vector<std::uint32_t> ids_, receive_ids_;  // by leader: in its own (the sender's) stage, in the receiver's
  std::map<std::pair<std::uint32_t, std::int64_t>, std::uint32_t> far_ids_;  // leader, other stage
  std::unordered_map<std::uint32_t, std::vector<NodeId>> bridged_;
};

}  // namespace

RankGroup canonical(const RankGroup& group) {
  RankGroup out{group.first, {}};
  for (const Stride& stride : group.strides) {
    if (stride.count == 1) continue;
    if (!out.strides.empty() && out.strides.back().stride * out.strides.back().count == stride.stride) {
      out.strides.back().count *= stride.count;
    } else {
      out.strides.push_back(stride);
    }
  }
  return out;
}

Result<std::vector<StageProgram>> lower(const ExecutionGraph& graph, const Timeline& timeline, std::int64_t node_gpus) {
  return Lowering(graph, timeline, node_gpus).run();
}

void merge_kernels(const ExecutionGraph& graph, StageProgram* program) {
  // Waits stay by themselves, so that the operators of a chain tell all of its time.
  const auto merges = [&graph](const Operation& operation) {
    return operation.role == Role::kKernel && !is_wait(std::get<Operator>(graph.work_of(operation.node).work));
  };
  const std::vector<Operation>& all = program->operations;
  std::unordered_set<std::uint32_t> behind_read;  // nodes with which launches begin anew: a chain lies on one side
  for (const Operation& operation : all) {
    if (operation.role != Role::kKernel) continue;
    for (const HostLaunches& launches : graph.work_of(operation.node).launches) {
      behind_read.insert(index(operation.node) - launches.before);
    }
  }
  std::vector<std::uint32_t> successors(all.size(), 0);
  const LaneId* lane = nullptr;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::uint32_t id : program->dependencies(i)) ++successors[id - 1];
    if (all[i].after != 0) ++successors[all[i].after - 1];
    if (all[i].role != Role::kKernel) continue;
    const LaneId& own = graph.node(all[i].node).lane;
    if (lane != nullptr && *lane != own) return;
    lane = &own;
  }
  StageProgram out;
  out.groups = std::move(program->groups);
  out.peers = std::move(program->peers);
  out.offsets.push_back(0);
  std::vector<std::uint32_t> new_id(all.size(), 0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::span<const std::uint32_t> on = program->dependencies(i);
    if (merges(all[i]) && on.size() == 1 && merges(all[on[0] - 1]) && successors[on[0] - 1] == 1 &&
        !behind_read.contains(index(all[i].node))) {
      const std::uint32_t head = new_id[on[0] - 1];
      Operation& operation = out.operations[head - 1];
      if (operation.chain == 0) {
        out.chains.push_back({operation.node});
        operation.chain = static_cast<std::uint32_t>(out.chains.size());
      }
      out.chains[operation.chain - 1].push_back(all[i].node);
      new_id[i] = head;
      continue;
    }
    out.operations.push_back(all[i]);
    new_id[i] = static_cast<std::uint32_t>(out.operations.size());
    if (all[i].after != 0) out.operations.back().after = new_id[all[i].after - 1];
    const std::size_t begin = out.depends_on.size();
    for (const std::uint32_t id : on) out.depends_on.push_back(new_id[id - 1]);
    std::sort(out.depends_on.begin() + static_cast<std::ptrdiff_t>(begin), out.depends_on.end());
    out.offsets.push_back(out.depends_on.size());
  }
  *program = std::move(out);
}

}  // namespace ns_dist::chakra
