#include <map>
#include <tuple>
#include <utility>

#include "ns_dist/result.h"
#include "ns_dist/step_program.h"

namespace ns_dist {
namespace {

using Kind = Instruction::Kind;

std::uint64_t nodes_of(const StepProgram& program, std::span<const Instruction> body) {
  std::uint64_t nodes = 0;
  for (const Instruction& instruction : body) {
    if (instruction.kind == Kind::kRun) {
      nodes += program.fragments[instruction.index].nodes.size() * static_cast<std::uint64_t>(instruction.times);
    } else if (instruction.kind == Kind::kStart || instruction.kind == Kind::kSend) {
      ++nodes;
    }
  }
  return nodes;
}

class Expander {
 public:
  Expander(const StepProgram& program, const std::vector<std::uint32_t>& row_of_actor)
      : program_(program),
        row_of_actor_(row_of_actor),
        builder_(program.mesh, static_cast<std::int64_t>(program.actors.size())),
        messages_(program.channels),
        receivers_(program.channels),
        meetings_(program.meetings.size()) {}

  Expansion run() && {
    const std::uint64_t nodes = program_.node_count();
    NS_EXPECTS(nodes < index(kNoNode));
    builder_.reserve(nodes, nodes / 2);
    for (std::size_t a = 0; a < program_.actors.size(); ++a) {
      begin(static_cast<std::int64_t>(a));
      for (const ProgramLoop& loop : program_.actors[a].loops) {
        for (std::int64_t repeat = 0; repeat < loop.repeats; ++repeat) {
          const auto offset = static_cast<std::int32_t>(repeat) * loop.shift;
          for (const BodyCall& call : loop.calls) {
            const std::int32_t first = call.microbatch < 0 ? -1 : call.microbatch + offset;
            const std::int32_t second = call.second < 0 ? -1 : call.second + offset;
            for (const Instruction& instruction : program_.bodies[index(call.body)]) {
              execute(instruction, instruction.second ? second : first);
            }
          }
        }
      }
    }
    for (std::uint32_t channel = 0; channel < program_.channels; ++channel) {
      for (const auto& [microbatch, node] : receivers_[channel]) {
        const auto message = messages_[channel].find(microbatch);
        NS_EXPECTS(message != messages_[channel].end());
        builder_.depend(node, message->second);
      }
    }
    for (Meeting& meeting : meetings_) {
      for (const auto& [channel, microbatch] : meeting.received) {
        const auto message = messages_[channel].find(microbatch);
        NS_EXPECTS(message != messages_[channel].end());
        meeting.before.push_back(message->second);
      }
      for (const NodeId guest : meeting.behind) {
        for (const NodeId node : meeting.before) builder_.depend(guest, node);
      }
    }
    expansion_.graph = std::move(builder_).build();
    return std::move(expansion_);
  }

 private:
  using Receipt = std::pair<std::uint32_t, std::int32_t>;  // channel and microbatch

  // What all its actors wait for, and what begins behind it.
  struct Meeting {
    std::vector<NodeId> before, behind;
    std::vector<Receipt> received;  // the messages among what they wait for
  };

  void begin(std::int64_t actor) {
    actor_ = actor;
    compute_ = ExecutionGraph::lane_of(actor, Stream::kCompute);
    works_.assign(program_.works.size(), kNoWork);
    pending_.clear();
    for (auto& started : started_) started.clear();
    receiving_.clear();
    meeting_ = -1;
  }

  void execute(const Instruction& instruction, std::int32_t microbatch) {
    switch (instruction.kind) {
      case Kind::kRun:
        for (std::int32_t i = 0; i < instruction.times; ++i) {
          const std::int32_t layer = instruction.layer < 0 ? -1 : instruction.layer + i * instruction.layer_step;
          stamp(program_.fragments[instruction.index], {microbatch, layer});
        }
        return;
      case Kind::kStart:
      case Kind::kSend: {
        std::vector<NodeId> dependencies = pending_;
        const NodeId kernel = builder_.last_on_lane(compute_);
        if (kernel != kNoNode) dependencies.push_back(kernel);
        const NodeId node =
            add(instruction.stream, WorkId{instruction.index}, {microbatch, instruction.layer}, dependencies);
        enter(node);
        meeting_ = -1;  // what was received is for the next kernel, too: a pass may have none before it sends
        started_[static_cast<std::size_t>(instruction.stream)].push_back(node);
        if (instruction.kind == Kind::kSend) messages_[instruction.channel].emplace(microbatch, node);
        return;
      }
      case Kind::kAwait: {
        const auto& started = started_[static_cast<std::size_t>(instruction.stream)];
        const auto count = static_cast<std::size_t>(instruction.times);
        if (started.empty()) return;
        NS_EXPECTS(count <= started.size());
        pending_.push_back(started[(count == 0 ? started.size() : count) - 1]);
        return;
      }
      case Kind::kReceive:
        receiving_.emplace_back(instruction.channel, microbatch);
        return;
      case Kind::kMeet: {
        Meeting& meeting = meetings_[instruction.index];
        meeting.before.insert(meeting.before.end(), pending_.begin(), pending_.end());
        const NodeId kernel = builder_.last_on_lane(compute_);
        if (kernel != kNoNode) meeting.before.push_back(kernel);
        meeting.received.insert(meeting.received.end(), receiving_.begin(), receiving_.end());
        pending_.clear();
        receiving_.clear();
        meeting_ = instruction.index;
        return;
      }
    }
  }

  NodeId add(Stream stream, WorkId work, Origin origin, const std::vector<NodeId>& dependencies) {
    WorkId& own = works_[index(work)];
    if (own == kNoWork) own = own_work(work);
    return builder_.add(ExecutionGraph::lane_of(actor_, stream), own, origin, dependencies);
  }

  // Nodes that begin what follows a receive wait for the message, those behind a meeting for all who met.
  void enter(NodeId node) {
    for (const auto& [channel, microbatch] : receiving_) receivers_[channel].emplace_back(microbatch, node);
    if (meeting_ >= 0) meetings_[static_cast<std::size_t>(meeting_)].behind.push_back(node);
  }
  void entered() {
    receiving_.clear();
    meeting_ = -1;
  }

  // The work item of the actor: that of its row, or for collectives of its own group.
  WorkId own_work(WorkId work) {
    const auto actor = static_cast<std::size_t>(actor_);
    const std::uint32_t row = row_of_actor_.empty() ? 0 : row_of_actor_[actor];
    WorkItem item = work_of_actor(program_.works[index(work)], program_.actors[actor].rank);
    const auto* collective = std::get_if<Collective>(&item.work);
    const Rank first = collective == nullptr ? 0 : collective->group.first;
    const auto [known, is_new] = shared_.try_emplace({row, index(work), first}, kNoWork);
    if (is_new) {
      known->second = builder_.add_work(std::move(item));
      expansion_.origins.push_back({row, work});
    }
    return known->second;
  }

  void stamp(const Fragment& fragment, Origin origin) {
    if (fragment.nodes.empty()) return;
    const std::uint32_t base = builder_.node_count();
    const NodeId previous_kernel = builder_.last_on_lane(compute_);
    const auto resolve = [&](std::int32_t dependency, std::vector<NodeId>& into) {
      if (dependency == kEntry) {
        into.insert(into.end(), pending_.begin(), pending_.end());
      } else if (dependency == kPreviousKernel) {
        if (previous_kernel != kNoNode) into.push_back(previous_kernel);
      } else {
        into.push_back(NodeId{base + static_cast<std::uint32_t>(dependency)});
      }
    };
    for (const FragmentNode& node : fragment.nodes) {
      scratch_.clear();
      bool enters = false;
      for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
        const std::int32_t on = fragment.dependencies[node.first_dependency + d];
        enters = enters || on == kEntry;
        resolve(on, scratch_);
      }
      const NodeId added = add(node.stream, node.work, origin, scratch_);
      if (enters) enter(added);
    }
    entered();
    std::vector<NodeId> exits;
    for (const std::int32_t exit : fragment.exits) resolve(exit, exits);
    pending_ = std::move(exits);
  }

  static constexpr WorkId kNoWork{0xffffffffu};

  const StepProgram& program_;
  const std::vector<std::uint32_t>& row_of_actor_;
  ExecutionGraph::Builder builder_;
  Expansion expansion_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, Rank>, WorkId> shared_;  // by row, work, first rank of the group
  std::vector<std::map<std::int32_t, NodeId>> messages_;                     // by channel: microbatch, message
  std::vector<std::vector<std::pair<std::int32_t, NodeId>>> receivers_;      // by channel: microbatch, who waits
  std::vector<Meeting> meetings_;

  // Of the actor.
  std::int64_t actor_ = 0;
  LaneId compute_{};
  std::vector<WorkId> works_;
  std::vector<NodeId> pending_, scratch_;
  std::vector<NodeId> started_[kStreamCount];
  std::vector<Receipt> receiving_;
  std::int64_t meeting_ = -1;
};

}  // namespace

std::uint64_t StepProgram::node_count() const {
  std::vector<std::uint64_t> by_body;
  by_body.reserve(bodies.size());
  for (std::size_t body = 0; body < bodies.size(); ++body) by_body.push_back(nodes_of(*this, bodies[body]));
  std::uint64_t nodes = 0;
  for (const Actor& actor : actors) {
    for (const ProgramLoop& loop : actor.loops) {
      for (const BodyCall& call : loop.calls)
        nodes += by_body[index(call.body)] * static_cast<std::uint64_t>(loop.repeats);
    }
  }
  return nodes;
}

std::vector<std::uint64_t> StepProgram::run_counts() const {
  std::vector<std::uint64_t> calls(bodies.size()), runs(works.size());
  for (const Actor& actor : actors) {
    for (const ProgramLoop& loop : actor.loops) {
      for (const BodyCall& call : loop.calls) calls[index(call.body)] += static_cast<std::uint64_t>(loop.repeats);
    }
  }
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    for (const Instruction& instruction : bodies[b]) {
      if (instruction.kind == Instruction::Kind::kStart || instruction.kind == Instruction::Kind::kSend) {
        runs[instruction.index] += calls[b];
      } else if (instruction.kind == Instruction::Kind::kRun) {
        for (const FragmentNode& node : fragments[instruction.index].nodes) {
          runs[index(node.work)] += calls[b] * static_cast<std::uint64_t>(instruction.times);
        }
      }
    }
  }
  return runs;
}

Expansion expand(const StepProgram& program, const std::vector<std::uint32_t>& row_of_actor) {
  return Expander(program, row_of_actor).run();
}

WorkItem work_of_actor(const WorkItem& item, Rank rank) {
  WorkItem own = item;
  if (auto* collective = std::get_if<Collective>(&own.work)) collective->group = collective->group.of(rank);
  return own;
}

}  // namespace ns_dist
