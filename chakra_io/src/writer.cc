#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "kernel_work.h"
#include "ns_dist/astra_network.h"
#include "ns_dist/files.h"
#include "ns_dist/operator_text.h"
#include "rules.h"
#include "stage_programs.h"
#include "wire.h"

namespace ns_dist {
namespace {

using namespace chakra;  // this module's own

// Ids of communicator groups, given out in the order in which they are first asked for, from 1.
class GroupIds {
 public:
  std::int64_t id_of(const RankGroup& group) {
    const auto [found, added] = ids_.try_emplace(group, static_cast<std::int64_t>(groups_.size()) + 1);
    if (added) groups_.push_back(group);
    return found->second;
  }
  const std::vector<RankGroup>& groups() const { return groups_; }

 private:
  struct Less {
    bool operator()(const RankGroup& a, const RankGroup& b) const {
      if (a.first != b.first) return a.first < b.first;
      return std::lexicographical_compare(
          a.strides.begin(), a.strides.end(), b.strides.begin(), b.strides.end(),
          [](const Stride& x, const Stride& y) { return std::tie(x.count, x.stride) < std::tie(y.count, y.stride); });
    }
  };
  std::map<RankGroup, std::int64_t, Less> ids_;
  std::vector<RankGroup> groups_;
};

// The feeder aborts on a transfer of nothing (assertion), so the least is a byte.
std::int64_t whole_bytes(double bytes) {
  return std::isfinite(bytes) ? static_cast<std::int64_t>(std::clamp(std::ceil(bytes), 1.0, 0x1p62)) : 1;
}

TraceCollective trace_kind(CollectiveKind kind) {
  const FeederKind* found = feeder_kind(kind);
  NS_EXPECTS(found != nullptr);  // lower() lets no other kind pass
  return found->trace;
}

// Whole units for durations that are not whole, so that a lane's running total is never off by more than half a unit.
class Carry {
 public:
  explicit Carry(std::uint32_t lanes) : exact_(lanes, 0), told_(lanes, 0) {}

  // `zero` is what the reader takes a zero for, in units.
  std::int64_t next(LaneId lane, double duration, double zero) {
    exact_[index(lane)] += duration;
    double& told = told_[index(lane)];
    const double whole = std::max(0.0, std::round(exact_[index(lane)] - told));
    told += whole > 0 ? whole : zero;
    return static_cast<std::int64_t>(std::min(whole, 0x1p62));
  }

 private:
  std::vector<double> exact_, told_;
};

// One stage's trace, serialized but for what differs between its ranks: protobuf messages may be cut anywhere between
// fields, so the attributes that name groups and peers follow as a suffix.
struct Template {
  struct Piece {
    std::size_t end = 0;  // into bytes
    int suffix = -1;      // -1: whole frames; otherwise the head of one message, which lacks its length and this suffix
  };
  std::string bytes;
  std::vector<Piece> pieces;
};

// Suffixes of a stage: its groups, then sends to each peer, then receives from each.
int suffix_of(const StageProgram& program, const Operation& operation) {
  const auto slot = static_cast<int>(operation.slot);
  const auto groups = static_cast<int>(program.groups.size()), peers = static_cast<int>(program.peers.size());
  switch (operation.role) {
    case Role::kKernel:
      return -1;
    case Role::kCollective:
      return slot;
    case Role::kSend:
      return groups + slot;
    case Role::kReceive:
      return groups + peers + slot;
  }
  return -1;
}

class StageWriter {
 public:
  StageWriter(const ExecutionGraph& graph, const Timeline& timeline, const ExportOptions& options)
      : graph_(graph),
        timeline_(timeline),
        node_gpus_(options.node_gpus),
        encoding_(options.encoding),
        alone_(options.alone),
        operators_(options.operators),
        compact_(options.merge_kernels),
        carry_us_(graph.lane_count()),
        carry_ns_(graph.lane_count()) {}

  Template make(const StageProgram& program) {
    NS_EXPECTS(alone_.empty() || alone_.size() == graph_.works().size());
    Template out;
    out.bytes = metadata_frame();
    told_by_.clear();
    place_nodes(program);
    ns_dist_et_def::Node message;
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      to_proto(node_of(program, i), &message);
      const int suffix = suffix_of(program, program.operations[i]);
      if (suffix < 0) {
        append_frame(message, &out.bytes);
      } else {
        if (!out.bytes.empty()) out.pieces.push_back({out.bytes.size(), -1});
        append_message(message, &out.bytes);
        out.pieces.push_back({out.bytes.size(), suffix});
      }
    }
    out.pieces.push_back({out.bytes.size(), -1});
    return out;
  }

 private:
  // Sets ids_.
  void place_nodes(const StageProgram& program) {
    ids_.clear();
    const std::span<const WorkItem> works = graph_.works();
    if (std::all_of(works.begin(), works.end(), [](const WorkItem& item) { return item.launches.empty(); })) return;
    ids_.assign(graph_.node_count(), 0);
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& operation = program.operations[i];
      if (operation.role == Role::kReceive || operation.part > 0) continue;
      const auto id = static_cast<std::uint32_t>(i + 1);
      ids_[index(operation.node)] = id;
      if (operation.chain == 0) continue;
      for (const NodeId each : program.chains[operation.chain - 1]) ids_[index(each)] = id;
    }
  }

  // Ours: what the host launches before the wait `node`, from which its duration follows on any GPU.
  void add_launches(const StageProgram& program, NodeId node, TraceNode* out) const {
    const std::vector<HostLaunches>& parts = graph_.work_of(node).launches;
    std::vector<std::int64_t> launched, dependencies, read_before;
    std::vector<double> launches_ns;
    std::unordered_map<std::size_t, std::int64_t> places;  // by id, in `launched`
    std::map<LaneId, std::int64_t> last;                   // the place of the node before on each lane
    std::uint32_t at = index(node) - parts.front().before;
    const auto launch = [&](std::size_t id, LaneId lane) {
      const auto place = static_cast<std::int64_t>(launched.size());
      launched.push_back(static_cast<std::int64_t>(id));
      std::set<std::int64_t> behind;
      for (const std::uint32_t on : program.dependencies(id - 1)) {
        if (const auto found = places.find(on); found != places.end()) behind.insert(found->second);
      }
      if (const auto before = last.find(lane); before != last.end()) behind.insert(before->second);
      dependencies.push_back(static_cast<std::int64_t>(behind.size()));
      dependencies.insert(dependencies.end(), behind.begin(), behind.end());
      places[id] = last[lane] = place;
    };
    const auto launch_until = [&](std::uint32_t end) {
      for (; at < end; ++at) {
        std::size_t id = ids_[at];
        if (id == 0 || places.count(id) != 0) continue;  // left out, or of a chain that is told
        do {                                             // all parts of a collective
          launch(id, graph_.node(NodeId{at}).lane);
        } while (id < program.operations.size() && program.operations[id++].part > 0);
      }
    };
    for (std::size_t p = 0; p < parts.size(); ++p) {
      launch_until(index(node) - parts[p].before);
      if (p > 0) read_before.push_back(static_cast<std::int64_t>(launched.size()));
      launches_ns.push_back(parts[p].all / units::ns);
    }
    launch_until(index(node));
    out->attributes.push_back({"ns_dist_launched", std::move(launched)});
    out->attributes.push_back({"ns_dist_launched_deps", std::move(dependencies)});
    out->attributes.push_back({"ns_dist_launches_ns", std::move(launches_ns)});
    if (parts.size() == 1) return;
    out->attributes.push_back({"ns_dist_read_before", std::move(read_before)});
    out->attributes.push_back({"ns_dist_launch_ns", parts.front().one / units::ns});
  }

  // Of a node in the timeline, ns.
  double duration_ns(NodeId node) const {
    const Span& span = timeline_.spans[index(node)];
    return std::max(0.0, (span.end - span.start) / units::ns);
  }

  // Of a chain's operators, one for all where they have the same. Empty: a reader finds them by itself. What it would
  // multiply experts' products by does not hold here, so those always have one.
  std::string factors_of(std::span<const NodeId> chain) const {
    if (alone_.empty()) return "";
    bool told = false, same = true;
    std::string all, first;
    for (const NodeId each : chain) {
      const double alone_ns = alone_[index(graph_.node(each).work)] / units::ns, ns = duration_ns(each);
      // Six digits: the timeline's grid is coarser for the shortest kernels.
      const std::string text = fmt::format("{:.6g}", alone_ns > 0 && ns > 0 ? ns / alone_ns : 1);
      told = told || text != "1" ||
             std::holds_alternative<GroupedGemm>(std::get<Operator>(graph_.work_of(each).work).kind);
      if (all.empty()) first = text;
      same = same && text == first;
      all += (all.empty() ? "" : "|") + text;
    }
    return !told ? "" : same ? first : all;
  }

  // What a chain of kernels is and does, or a wait.
  void add_kernels(const StageProgram& program, const Operation& operation, std::span<const NodeId> chain,
                   double exact_ns, TraceNode* out) {
    const WorkItem& item = graph_.work_of(operation.node);
    const auto add = [out](const char* name, TraceValue value) { out->attributes.push_back({name, std::move(value)}); };
    bool told = false;  // by another node
    // Ours, too. What waits for the host is always told: other GPUs make it no shorter.
    if (operators_ || (is_wait(std::get<Operator>(item.work)) && !item.host.any())) {
      std::string specs;
      for (const NodeId each : chain) {
        specs += (specs.empty() ? "" : "|") + to_spec(std::get<Operator>(graph_.work_of(each).work));
      }
      std::string factors = factors_of(chain);
      if (compact_) {
        const auto [first, added] = told_by_.try_emplace(specs + "\n" + factors, out->id);
        told = !added;
        if (told) add("ns_dist_as", static_cast<std::int64_t>(first->second));
      }
      if (!told) add("ns_dist_op", std::move(specs));
      if (!told && !factors.empty()) add("ns_dist_factor", std::move(factors));
      if (operators_ && !item.launches.empty()) add_launches(program, operation.node, out);
      if (operators_ && !compact_) add("ns_dist_pass", std::string(name_of(item.category)));
    }
    if (encoding_ == TraceEncoding::kRoofline) {
      // trunc(num_ops / 1e12 * 1e9) ns: the 500 keep the product clear of the edge. The feeder asserts at 0 ns.
      const std::int64_t ns = std::max<std::int64_t>(1, carry_ns_.next(graph_.node(operation.node).lane, exact_ns, 1));
      add("num_ops", std::min(ns, std::int64_t{1} << 52) * 1000 + 500);
      add("tensor_size", std::int64_t{1});
    } else if (!told) {
      Work work;
      for (const NodeId each : chain) {
        const Work one = work_of(std::get<Operator>(graph_.work_of(each).work));
        work.flops += one.flops;
        work.read += one.read;
        work.written += one.written;
      }
      add("num_ops", whole_bytes(work.flops / units::FLOP));  // not 0: its roofline would divide by it
      add("tensor_size", whole_bytes((work.read + work.written) / units::B));
    }
  }

  TraceNode node_of(const StageProgram& program, std::size_t i) {
    const Operation& operation = program.operations[i];
    const GraphNode& node = graph_.node(operation.node);
    const WorkItem& item = graph_.work_of(operation.node);
    const std::span<const NodeId> chain = operation.chain == 0
                                              ? std::span<const NodeId>(&operation.node, 1)
                                              : std::span<const NodeId>(program.chains[operation.chain - 1]);
    double exact_ns = 0;
    for (const NodeId each : chain) exact_ns += duration_ns(each);

    TraceNode out;
    out.id = i + 1;
    out.type = type_of(operation.role);
    // Chakra's timeline tool looks for the type in the name, and reads no further than "," or "=".
    // In small traces, what no other field tells: "COMM_COLL_NODE attention".
    const bool kernel = operation.role == Role::kKernel;
    const std::string_view title = item.name;
    out.name = fmt::format("{} {}", name_of(out.type), compact_ && !kernel ? title.substr(0, title.find('.')) : title);
    Collective collective;  // of one that is several: the one that this operation is
    if (operation.role == Role::kCollective) {
      std::vector<Collective> parts = astra_exchanges(std::get<Collective>(item.work), node_gpus_);
      collective = parts[operation.part];
      if (parts.size() > 1) {
        Bytes all;
        for (const Collective& part : parts) all += part.size;
        exact_ns *= collective.size / all;
        out.name += operation.part == 0 ? " between nodes" : " in each node";
      }
    }
    if (chain.size() > 1) out.name += fmt::format(" +{}", chain.size() - 1);
    if (!compact_ && node.origin.layer >= 0) out.name += fmt::format(" layer {}", node.origin.layer);
    if (!compact_ && node.origin.microbatch >= 0) out.name += fmt::format(" microbatch {}", node.origin.microbatch);
    for (const std::uint32_t id : program.dependencies(i)) out.data_deps.push_back(id);
    if (operation.after != 0 && !(compact_ && waits_already(program, i))) out.ctrl_deps.push_back(operation.after);

    const auto add = [&out](const char* name, TraceValue value) { out.attributes.push_back({name, std::move(value)}); };
    // What the feeder takes it for by itself, but for the host's work, which runs beside kernels.
    if (const bool on_host = item.host.any(); on_host || !compact_) add("is_cpu_op", on_host);
    if (operation.role == Role::kReceive) {
      add("comm_size", message_bytes(item));
      add("comm_tag", std::int64_t{operation.tag});
      return out;  // its time is its sender's
    }
    out.duration_micros = static_cast<std::uint64_t>(carry_us_.next(node.lane, exact_ns * 1e-3, 1e-3));
    const bool roofline = encoding_ == TraceEncoding::kRoofline;
    // Ours; nobody else reads it.
    if (!compact_ || (roofline && kernel)) add("ns_dist_duration_ns", exact_ns);
    if (std::holds_alternative<Operator>(item.work)) {
      add_kernels(program, operation, chain, exact_ns, &out);
    } else if (operation.role == Role::kCollective) {
      add("comm_type", static_cast<std::int64_t>(trace_kind(collective.kind)));
      add("comm_size", astra_comm_size(collective));
    } else {
      add("comm_size", message_bytes(item));
      add("comm_tag", std::int64_t{operation.tag});
    }
    return out;
  }

  // Whether one of its dependencies waits for the operation before it in the chain.
  static bool waits_already(const StageProgram& program, std::size_t i) {
    const std::uint32_t after = program.operations[i].after;
    for (const std::uint32_t on : program.dependencies(i)) {
      const auto earlier = program.dependencies(on - 1);
      if (on == after || std::binary_search(earlier.begin(), earlier.end(), after)) return true;
    }
    return false;
  }

  static TraceNodeType type_of(Role role) {
    switch (role) {
      case Role::kKernel:
        return TraceNodeType::kCompute;
      case Role::kCollective:
        return TraceNodeType::kCollective;
      case Role::kSend:
        return TraceNodeType::kSend;
      case Role::kReceive:
        return TraceNodeType::kReceive;
    }
    return TraceNodeType::kInvalid;
  }

  static std::int64_t message_bytes(const WorkItem& item) {
    const auto* ring = std::get_if<Collective>(&item.work);
    return whole_bytes((ring != nullptr ? ring->size : std::get<Message>(item.work).size) / units::B);
  }

  const ExecutionGraph& graph_;
  const Timeline& timeline_;
  std::int64_t node_gpus_;
  TraceEncoding encoding_;
  const std::vector<Seconds>& alone_;  // by WorkId, or empty
  bool operators_, compact_;
  std::unordered_map<std::string, std::uint64_t> told_by_;  // operators and factors -> the first node that has them
  std::vector<std::uint32_t> ids_;  // by NodeId: its id in the stage's trace, of several the first; empty without waits
  Carry carry_us_, carry_ns_;
};

std::vector<std::string> suffixes_of(const StageProgram& program, const Mesh& mesh, Rank rank, std::int64_t stage,
                                     GroupIds* ids) {
  std::vector<std::string> out;
  const auto serialize = [&out](std::vector<TraceAttribute> attributes) {
    TraceNode fields;
    fields.attributes = std::move(attributes);
    ns_dist_et_def::Node message;
    to_proto(fields, &message);
    out.push_back(message.SerializeAsString());
  };
  for (const RankGroup& group : program.groups) {
    serialize({{"pg_name", std::to_string(ids->id_of(group.of(rank)))}});
  }
  for (const bool send : {true, false}) {
    for (const Peer& other : program.peers) {
      const auto [count, stride] = other.ring;
      const std::int64_t place = (rank / stride) % count, step = send ? 1 : count - 1;
      const Rank peer = rank + (other.stage - stage) * mesh.stride("pp") + ((place + step) % count - place) * stride;
      serialize({{"comm_src", send ? rank : peer}, {"comm_dst", send ? peer : rank}});
    }
  }
  return out;
}

Result<std::uint64_t> write_rank(const std::filesystem::path& path, const Template& trace,
                                 const std::vector<std::string>& suffixes) {
  NS_TRY(OutputFile file, OutputFile::open(path));
  const std::string_view bytes = trace.bytes;
  std::size_t begin = 0;
  std::string length;
  for (const Template::Piece& piece : trace.pieces) {
    const std::string_view head = bytes.substr(begin, piece.end - begin);
    begin = piece.end;
    if (piece.suffix < 0) {
      file.write(head);
    } else {
      const std::string& suffix = suffixes[static_cast<std::size_t>(piece.suffix)];
      length.clear();
      append_varint(head.size() + suffix.size(), &length);
      file.write(length);
      file.write(head);
      file.write(suffix);
    }
  }
  NS_TRY_VOID(file.finish());
  return file.size();
}

Result<void> write_groups(const std::filesystem::path& path, const std::vector<RankGroup>& groups) {
  NS_TRY(OutputFile file, OutputFile::open(path));
  file.write("{");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    file.write(fmt::format("{}\n\"{}\": [", g == 0 ? "" : ",", g + 1));
    for (std::int64_t i = 0; i < groups[g].size(); ++i) {
      file.write(fmt::format("{}{}", i == 0 ? "" : ", ", groups[g].at(i)));
    }
    file.write("]");
  }
  file.write("\n}\n");
  return file.finish();
}

void count(const StageProgram& program, std::uint64_t ranks, ExportSummary* summary) {
  for (const Operation& operation : program.operations) {
    summary->nodes += ranks;
    switch (operation.role) {
      case Role::kKernel:
        summary->kernels += ranks;
        break;
      case Role::kCollective:
        summary->collectives += ranks;
        break;
      case Role::kSend:
        summary->sends += ranks;
        break;
      case Role::kReceive:
        summary->receives += ranks;
        break;
    }
  }
}

}  // namespace

Result<void> write_trace(const std::filesystem::path& path, std::span<const TraceNode> nodes) {
  NS_TRY(OutputFile file, OutputFile::open(path));
  file.write(metadata_frame());
  ns_dist_et_def::Node message;
  std::string frame;
  for (const TraceNode& node : nodes) {
    if (Result<void> fine = check_texts(node); !fine) {
      Error error = std::move(fine).error();
      error.where = fmt::format("{}, node {}", path.string(), node.id);
      return fail(std::move(error));
    }
    to_proto(node, &message);
    frame.clear();
    append_frame(message, &frame);
    file.write(frame);
  }
  return file.finish();
}

struct TraceExport::Prepared {
  const ExecutionGraph* graph = nullptr;
  const Timeline* timeline = nullptr;
  ExportOptions options;
  std::vector<StageProgram> programs;
  GroupIds ids;
  ExportSummary expected;
};

TraceExport::TraceExport(std::unique_ptr<Prepared> prepared) : prepared_(std::move(prepared)) {}
TraceExport::TraceExport(TraceExport&&) noexcept = default;
TraceExport& TraceExport::operator=(TraceExport&&) noexcept = default;
TraceExport::~TraceExport() = default;
const ExportSummary& TraceExport::expected() const { return prepared_->expected; }

Result<TraceExport> TraceExport::prepare(const ExecutionGraph& graph, const Timeline& timeline,
                                         const ExportOptions& options) {
  if (options.prefix.empty() || options.prefix == "." || options.prefix == ".." ||
      options.prefix.find_first_of(std::string("/\0", 2)) != std::string::npos) {
    return fail({ErrorCode::kInvalidInput, fmt::format("\"{}\" is no beginning of a file name", options.prefix),
                 "prefix", "a name without \"/\"", "the folder is named by itself"});
  }
  auto out = std::make_unique<Prepared>();
  out->graph = &graph;
  out->timeline = &timeline;
  out->options = options;
  NS_TRY(out->programs, lower(graph, timeline, options.node_gpus));
  if (options.merge_kernels) {
    for (StageProgram& program : out->programs) merge_kernels(graph, &program);
  }
  const Mesh& mesh = graph.mesh();
  ExportSummary& expected = out->expected;
  expected.ranks = mesh.ranks();
  for (Rank rank = 0; rank < expected.ranks; ++rank) {  // ids in the order of ranks, whatever the order of writing
    const auto& groups = out->programs[static_cast<std::size_t>(mesh.coordinate(rank, "pp"))].groups;
    for (const RankGroup& group : groups) out->ids.id_of(group.of(rank));
  }
  expected.groups = static_cast<std::int64_t>(out->ids.groups().size());
  StageWriter writer(graph, timeline, options);
  const auto ranks = static_cast<std::uint64_t>(expected.ranks / graph.stage_count());
  for (std::int64_t stage = 0; stage < graph.stage_count(); ++stage) {
    const StageProgram& program = out->programs[static_cast<std::size_t>(stage)];
    count(program, ranks, &expected);
    const std::vector<std::string> suffixes = suffixes_of(program, mesh, representative(mesh, stage), stage, &out->ids);
    std::uint64_t bytes = 0;
    const Template trace = writer.make(program);
    std::size_t begin = 0;
    std::string length;
    for (const Template::Piece& piece : trace.pieces) {
      bytes += piece.end - begin;
      if (piece.suffix >= 0) {
        const std::size_t suffix = suffixes[static_cast<std::size_t>(piece.suffix)].size();
        length.clear();
        append_varint(piece.end - begin + suffix, &length);
        bytes += suffix + length.size();
      }
      begin = piece.end;
    }
    expected.bytes += ranks * bytes;
  }
  return TraceExport(std::move(out));
}

Result<ExportSummary> TraceExport::write(const std::filesystem::path& directory) {
  Prepared& p = *prepared_;
  std::error_code failed;  // files say it, too
  std::filesystem::create_directories(directory, failed);
  const Mesh& mesh = p.graph->mesh();
  ExportSummary summary = p.expected;
  summary.bytes = 0;
  summary.comm_groups = directory / "comm_groups.json";
  NS_TRY_VOID(write_groups(summary.comm_groups, p.ids.groups()));
  StageWriter writer(*p.graph, *p.timeline, p.options);
  std::int64_t files = 0;
  for (std::int64_t stage = 0; stage < p.graph->stage_count(); ++stage) {
    const StageProgram& program = p.programs[static_cast<std::size_t>(stage)];
    const Template trace = writer.make(program);
    for (Rank rank = 0; rank < summary.ranks; ++rank) {
      if (mesh.coordinate(rank, "pp") != stage) continue;
      const std::filesystem::path path = directory / fmt::format("{}.{}.et", p.options.prefix, rank);
      NS_TRY(const std::uint64_t bytes, write_rank(path, trace, suffixes_of(program, mesh, rank, stage, &p.ids)));
      summary.bytes += bytes;
      if (p.options.progress) p.options.progress(++files, summary.ranks);
    }
  }
  return summary;
}

Result<ExportSummary> write_traces(const ExecutionGraph& graph, const Timeline& timeline,
                                   const ExportOptions& options) {
  NS_TRY(TraceExport traces, TraceExport::prepare(graph, timeline, options));
  return traces.write(options.directory);
}

}  // namespace ns_dist
