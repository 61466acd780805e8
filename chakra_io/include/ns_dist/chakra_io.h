// Chakra execution traces: one training step as other simulators read it, one file a rank.
//
//   NS_TRY(const ExportSummary written, write_traces(graph, timeline, {.directory = "traces"}));
//   NS_TRY(const CommGroups groups, read_comm_groups(written.comm_groups));
//   NS_TRY(const ReplayReport report, replay("traces/trace", written.ranks, groups));
//   report.ok();                                              // every node of every rank came to its end
//
// Files and rules are those of ASTRA-Sim's feeder (version 3, ASTRA-Sim of March 2026): <prefix>.<rank>.et, not
// compressed, frames of a varint length and a protobuf message (proto/et_def.proto).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ns_dist/astra_network.h"
#include "ns_dist/cluster.h"
#include "ns_dist/execution_graph.h"
#include "ns_dist/files.h"
#include "ns_dist/names.h"
#include "ns_dist/operator.h"
#include "ns_dist/result.h"
#include "ns_dist/timeline.h"

namespace ns_dist {

// ---- One trace ----

// Numbers are the format's.
enum class TraceNodeType : std::uint8_t {
  kInvalid = 0,
  kMetadata = 1,
  kMemLoad = 2,
  kMemStore = 3,
  kCompute = 4,
  kSend = 5,
  kReceive = 6,
  kCollective = 7,
};
std::string_view name_of(TraceNodeType type);  // "COMP_NODE", ... as the format spells them

// Values of the attribute "comm_type"; numbers are the format's.
enum class TraceCollective : std::uint8_t {
  kAllReduce = 0,
  kReduce = 1,
  kAllGather = 2,
  kGather = 3,
  kScatter = 4,
  kBroadcast = 5,
  kAllToAll = 6,
  kReduceScatter = 7,
  kReduceScatterBlock = 8,
  kBarrier = 9,
};

// The format's fifteen scalar types in C++ types that hold them: signed, unsigned and floating ones each in their
// widest, bytes as text. Writing one back keeps its value, not its width.
using TraceValue =
    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, std::vector<bool>,
                 std::vector<std::int64_t>, std::vector<std::uint64_t>, std::vector<double>, std::vector<std::string>>;

struct TraceAttribute {
  std::string name;
  TraceValue value;
  friend bool operator==(const TraceAttribute&, const TraceAttribute&) = default;
};

struct TraceTensors {
  std::string values, shapes, types;
  friend bool operator==(const TraceTensors&, const TraceTensors&) = default;
};

struct TraceNode {
  std::uint64_t id = 0;
  std::string name;
  TraceNodeType type = TraceNodeType::kInvalid;
  std::vector<std::uint64_t> data_deps, ctrl_deps;  // both gate the start
  std::uint64_t start_micros = 0, duration_micros = 0;
  TraceTensors inputs, outputs;
  std::vector<TraceAttribute> attributes;

  // The first attribute of that name, or nullptr.
  const TraceValue* attribute(std::string_view attribute_name) const;
  friend bool operator==(const TraceNode&, const TraceNode&) = default;
};

// Reads one trace, plain or gzipped, node by node in constant memory. Errors, each with file, byte offset (of what was
// packed) and number of the node: a file that ends inside a frame, a frame that is no node or longer than 64 MiB, JSON;
// from a stream, a compressed one; and whatever error `visit` returns.
Result<void> read_trace(const std::filesystem::path& path, const std::function<Result<void>(TraceNode&&)>& visit);
Result<void> read_trace(std::istream& in, const std::string& where,
                        const std::function<Result<void>(TraceNode&&)>& visit);
Result<std::vector<TraceNode>> read_trace(const std::filesystem::path& path);

// Writes one trace. Values that are no UTF-8 become bytes. Errors: a name, inputs or outputs that are none; a file that
// cannot be written.
Result<void> write_trace(const std::filesystem::path& path, std::span<const TraceNode> nodes);

// ---- A training step ----

// How a kernel's duration is told. Both write duration_micros.
enum class TraceEncoding {
  // To the nanosecond, as work for the feeder's roofline at 1 TFLOP/s: num_ops = 1000 ns + 500, tensor_size = 1. About
  // 65 bytes a kernel more where kernels are merged.
  kRoofline,
  // In whole microseconds, the format's own field. The rounding remainder is carried along each lane, so a lane's total
  // as the feeder reads it (0 us as 1 ns) is exact to half a microsecond.
  kDurations,
};
template <>
inline constexpr auto kEnumeratorNames<TraceEncoding> = std::to_array<std::string_view>({"roofline", "durations"});

struct ExportOptions {
  std::filesystem::path directory;  // made when it is missing
  std::string prefix = "trace";
  TraceEncoding encoding = TraceEncoding::kRoofline;
  // Kernels carry two attributes of ours: ns_dist_op, their operator (operator_text.h), and ns_dist_pass, their
  // category. Waits for the host (WorkItem::launches) carry what `annotate` computes them from (the module's README).
  // Without, waits alone have ns_dist_op.
  bool operators = true;
  // By WorkId: what readers of the traces forecast a kernel with this operator to take on the GPU of the step; zero
  // where they cannot. How many times as long it takes in the timeline is written as ns_dist_factor beside the
  // operator: experts whose groups are uneven, a slow stage, collectives beside it. Empty: not told.
  std::vector<Seconds> alone = {};
  // Small traces. Chains of kernels with nothing between them become one node, whose ns_dist_op is theirs with "|"
  // between them, or ns_dist_as, the id of an earlier node that has the same. No
  // rank ends at another time, but for the microseconds of kernels below half a microsecond.
  bool merge_kernels = false;
  bool host_work = false;  // some nodes are CPU operators: the README says what ASTRA-Sim makes of them
  // GPUs of a node, numbered one after the other. All-to-alls that send one copy of a token to each node
  // (Collective::routing) become two: between nodes, then in each node. 0: they stay one, with a copy for each rank.
  std::int64_t node_gpus = 0;
  std::function<void(std::int64_t files, std::int64_t of)> progress = {};  // after each file; may be empty
};

struct ExportSummary {
  std::int64_t ranks = 0;                                                                     // and files
  std::uint64_t nodes = 0, kernels = 0, collectives = 0, sends = 0, receives = 0, bytes = 0;  // of all files
  std::int64_t groups = 0;
  std::filesystem::path comm_groups;  // the communicator groups' file
};

// An export whose size is known before it is written. Graph and timeline must outlive it.
class TraceExport {
 public:
  // Errors: those of write_traces that lie in the graph; a prefix that is no beginning of a file name.
  static Result<TraceExport> prepare(const ExecutionGraph& graph, const Timeline& timeline,
                                     const ExportOptions& options);
  TraceExport(TraceExport&&) noexcept;
  TraceExport& operator=(TraceExport&&) noexcept;
  ~TraceExport();

  // Numbers are exact; bytes are those of one rank of each stage, times the ranks of the stage.
  const ExportSummary& expected() const;
  // Into `directory`, instead of that of the options.
  Result<ExportSummary> write(const std::filesystem::path& directory);

 private:
  struct Prepared;
  explicit TraceExport(std::unique_ptr<Prepared> prepared);
  std::unique_ptr<Prepared> prepared_;
};

// Files that appear in a folder when all of them are written, or not at all. Until then they lie in a folder beside it,
// or, where the folder is there already, in one inside of it. One process at a time writes into a folder.
class ExportFolder {
 public:
  // Errors: a folder that cannot be made; without `force`, a folder with files that are no export's, or with traces of
  // ranks beyond `ranks`; another process that writes into it. A folder has an export's files where its manifest.json
  // is one of ours, which names those beside the traces, or where an export was killed.
  static Result<ExportFolder> open(const std::filesystem::path& directory, const std::string& prefix,
                                   std::int64_t ranks, bool force);
  ExportFolder(ExportFolder&& other) noexcept;
  ExportFolder& operator=(ExportFolder&&) = delete;
  ~ExportFolder();  // without commit: removes what was written

  const std::filesystem::path& staging() const { return staging_->path(); }
  std::uint64_t free_bytes() const;  // of the file system
  // Writes `manifest`, a JSON object, last, as manifest.json, with its "schema" and the names of "files" beside the
  // traces. Traces of earlier exports beyond `ranks` go, and what such an export left beside them and was not written
  // anew. Returns what manifest.json holds.
  Result<std::string> commit(const std::string& manifest);

 private:
  ExportFolder() = default;
  std::filesystem::path directory_;
  std::optional<Unfinished> staging_;
  std::vector<std::filesystem::path> stale_;
  std::vector<std::string> left_;  // by an earlier export, beside its traces
  int lock_ = -1;                  // descriptor of the folder
  bool inside_ = false;
};

// Writes the trace of every rank of the mesh, and comm_groups.json beside them. The work of a pipeline stage is that of
// its representative; groups and peers are moved to each rank.
//
// The feeder has one slot a rank for collectives and sends together, where GPUs have several streams. So all of a
// rank's collectives and sends are put into one order, by the start that `timeline` gives them, and chained by control
// dependencies: every rank follows one global order of the step, which therefore ends (proof in the module's README).
// The chain costs overlap between collectives, never correctness.
//
// Collectives of one rank and messages from a stage to itself are left out, and their dependencies bridged.
//
// Errors: a graph that Chakra cannot express (an edge between stages without a message; a collective of several
// stages that they do not all run; one that the feeder cannot run: reduce, gather, scatter, barrier, send_recv); a
// stage without work; a file that cannot be written.
Result<ExportSummary> write_traces(const ExecutionGraph& graph, const Timeline& timeline, const ExportOptions& options);

// Writes what ASTRA-Sim's analytical backends need beside the traces: network.yml, system.json, remote_memory.json and
// README.md with the command to run. Link bandwidths are in GiB/s, which is what its "GB/s" means. `fitted`: written
// instead of the network that to_astra gives, and told as fitted.
// Errors: fewer than two ranks; ranks that fill no whole number of the cluster's units; a file that cannot be written.
Result<void> write_astra_inputs(const Cluster& cluster, std::int64_t ranks, const ExportOptions& options,
                                const std::optional<AstraSystem>& fitted = std::nullopt);

// ---- Replay ----

// Members of each communicator in ring order, by id; ids count from 1.
using CommGroups = std::map<std::int64_t, std::vector<Rank>>;

// Reads {"1": [0, 1, ...], ...}. Errors: what the feeder would refuse, with the key.
Result<CommGroups> read_comm_groups(const std::filesystem::path& path);

// Where the reading of traces ends: a damaged file may go on without end.
inline constexpr std::uint64_t kMostProblems = 1'000'000;

struct TraceProblem {
  Rank rank = 0;
  std::uint64_t node = 0;
  std::string name;     // the node's
  std::string message;  // what it waits for, or what is wrong with it
  friend bool operator==(const TraceProblem&, const TraceProblem&) = default;
};

// `rank` cannot go on in its node before rank `on` does.
struct TraceWait {
  Rank rank = 0;
  std::uint64_t node = 0;
  Rank on = 0;
  std::string what;  // "collective number 3 of group 1", "a message with tag 7"
  friend bool operator==(const TraceWait&, const TraceWait&) = default;
};

struct ReplayReport {
  std::int64_t finished = 0;             // ranks that ran all of their nodes
  std::uint64_t nodes = 0;               // of all ranks
  std::vector<bool> complete;            // by rank: it ran all of its nodes
  std::vector<std::uint64_t> finish_ns;  // by rank: end of the last node that ended
  // By rank: while a kernel ran; while a collective, send or memory transfer held its slot, waiting included.
  std::vector<std::uint64_t> kernel_ns, communication_ns;
  std::uint64_t memory_nodes = 0;      // loads and stores of remote memory: they take their recorded microseconds
  std::vector<TraceProblem> problems;  // by rank and node; at most kMostListed of a rank
  std::vector<TraceWait> deadlock;     // ranks in a circle, each waits for the next one and the last for the first
  bool ok() const { return problems.empty() && finished == static_cast<std::int64_t>(finish_ns.size()); }

  static constexpr int kMostListed = 8;
};

// What a network answers, ns. Ranks of a collective come as their group lists them; `times` holds when each one starts,
// and becomes when each one ends. `bytes` is the trace's comm_size.
struct ReplayNetwork {
  std::function<Result<std::int64_t>(Rank from, Rank to, std::int64_t bytes)> message;
  std::function<Result<void>(CollectiveKind kind, std::int64_t bytes, std::span<const Rank> ranks,
                             std::span<std::int64_t> times)>
      collective;
};

// A node that ended; views hold during the call.
struct ReplayedNode {
  Rank rank = 0;
  std::uint64_t id = 0;
  std::string_view name;
  TraceNodeType type = TraceNodeType::kInvalid;
  bool cpu = false;
  std::uint64_t start_ns = 0, end_ns = 0;
};

struct ReplayOptions {
  // Kernels by their work: the larger of num_ops / peak_tflops and tensor_size / local_memory_gbs (10^9 bytes/s),
  // truncated to ns. Otherwise by their recorded microseconds, 0 taken for 1 ns.
  bool roofline = false;
  double peak_tflops = 0, local_memory_gbs = 0;
  bool replay_only = false;  // every node takes its recorded microseconds, and nobody waits for a peer
  std::uint64_t most_micros = std::uint64_t{1} << 53;  // longer recorded durations are cut to this
  ReplayNetwork network = {};  // empty: communication takes its recorded microseconds once its ranks have met
  // What ASTRA-Sim would run them with, where it is known: it tells which dimensions a collective leaves out. With a
  // `network`, what ASTRA-Sim would stop at or hang in by its clock is a problem, too, as in `lint`.
  std::optional<AstraSystem> system = {};
  std::function<void(const ReplayedNode&)> visit = {};    // may be empty
  std::function<void(std::int64_t files)> progress = {};  // after each file that was read; may be empty
};

// The files of a run, by rank.
struct TraceSet {
  std::filesystem::path prefix;  // without ".<rank>.et"
  std::vector<std::filesystem::path> files;
};

// How many ranks have a trace PREFIX.RANK.et or .et.gz in the folder of this one, itself included; of other names 1.
std::int64_t ranks_beside(const std::filesystem::path& trace);

// Finds <prefix>.<rank>.et or .et.gz from rank 0 on; `where` is the prefix, or a folder with one prefix in it.
// Errors: no trace, several prefixes, a rank that is missing or is there twice.
Result<TraceSet> find_traces(const std::filesystem::path& where);

// Runs traces by the feeder's rules: a node is ready when its data and control dependencies have ended; of a rank's
// ready nodes the lowest id starts first; one kernel, one CPU operator and one collective, send or memory transfer at a
// time, receives without limit; a send is eager and meets the receive of equal tag, source, destination and size, first
// in, first out; a group's collectives meet in the order in which each member starts them and must agree in type and
// size.
//
// What would hang, stop or be lost there is a problem here: of the nodes that can never run, those that the others wait
// for. A rank is read up to problem number kMostProblems. Memory: about 110 bytes a node. Errors: files that cannot be
// read; those of the network.
Result<ReplayReport> replay(const TraceSet& traces, const CommGroups& groups, const ReplayOptions& options);
Result<ReplayReport> replay(std::span<const std::vector<TraceNode>> traces, const CommGroups& groups,
                            const ReplayOptions& options);

// The same without a network, kernels by the encoding that write_traces used.
Result<ReplayReport> replay(const std::filesystem::path& prefix, std::int64_t ranks, const CommGroups& groups,
                            TraceEncoding encoding = ExportOptions().encoding);

// ---- Lint ----

struct LintOptions {
  std::optional<AstraSystem> system = {};                 // what ASTRA-Sim would run them with, where it is known
  bool no_remote_memory = false;                          // it is NO_MEMORY_EXPANSION
  ReplayNetwork network = {};                             // of replays: what it does not answer is noted
  std::uint64_t most_nodes_to_run = 20'000'000;           // 0: traces are read and not run
  std::uint64_t most_problems = kMostProblems;            // reading ends there, over all ranks
  std::function<void(std::int64_t files)> progress = {};  // after each file; may be empty
};

struct LintReport {
  std::uint64_t nodes = 0, kernels = 0, collectives = 0, sends = 0, receives = 0, others = 0;
  // What ASTRA-Sim would stop at, hang in, or lose; by rank, at most ReplayReport::kMostListed of a rank.
  std::vector<TraceProblem> problems;
  std::uint64_t problem_count = 0;  // with those that are not listed
  std::vector<TraceWait> deadlock;  // as in ReplayReport
  std::vector<std::string> notes;   // what is odd, but runs
  bool ran = false;                 // the traces were run, so a hang would have been found
};

// What is wrong with these traces? Each file is read once, in memory of some 30 bytes a node of one rank: framing, ids,
// dependencies that are missing or go in a circle, what the feeder refuses in a node; then across ranks: messages
// without their other end, members of a group whose collectives differ; and what the network and the system lack: an
// NPU for each trace and a trace for each NPU, algorithms, rates of a roofline. Traces without a problem are run once
// without a network (replay), for the hangs that only show then. Reading ends at `most_problems`, and a note says so.
// Errors: none of the files can be opened.
Result<LintReport> lint(const TraceSet& traces, const CommGroups& groups, const LintOptions& options = {});

// ---- What a kernel computes ----

inline constexpr std::string_view kOperatorAttribute = "operator attribute";
struct KernelWork {
  std::string_view told_by;  // kOperatorAttribute, "PyTorch operator", "STAGE symbols", "work"; empty: by nothing
  std::vector<Operator> operators;  // one after the other
  std::vector<double> factors;      // of each, as ns_dist_factor tells them; empty: not told
};

// What a kernel's node tells by itself: our attribute ns_dist_op; a PyTorch operator (op_schema or name, with shapes
// and types of its inputs); a node of STAGE, with its tensors; or only num_ops, FLOP, and tensor_size, bytes. Kernels
// of a recorded PyTorch trace tell it by the CPU operator that launched them, which `annotate` looks up. Error:
// ns_dist_factor does not tell a factor of each operator of ns_dist_op; it has no place.
Result<KernelWork> kernel_work(const TraceNode& node);

// A wait for the host: the nodes that it launched before, and how long that took it.
struct HostWait {
  std::vector<std::uint64_t> launched;      // ids, in this order
  std::vector<std::uint32_t> dependencies;  // for each: how many of those before it it waits for, and their places
  std::vector<std::uint32_t> read_before;   // places before which it looked at a result, ascending
  std::vector<double> launches_ns;          // of the nodes up to each such place, and of the rest
  double launch_ns = 0;                     // of one
};

inline constexpr std::string_view kToldByLaunches = "host's launches";
// Nothing where the node tells none, or what cannot be.
std::optional<HostWait> host_wait(const TraceNode& node);

// What launched nodes that take `durations_ns` do not hide of the launches (host_launches.h): each runs behind those
// that it waits for.
double wait_ns(const HostWait& wait, std::span<const double> durations_ns);

// A wait that was recorded, after the launched nodes take other durations: longer or shorter by what the two hide.
// Recorded ones alone give the recorded wait, whatever else held up the nodes.
double wait_ns(const HostWait& wait, double recorded_wait_ns, std::span<const double> recorded_ns,
               std::span<const double> now_ns);

// ---- Annotate ----

// How a kernel's new duration came about.
enum class AnnotateWay : std::uint8_t {
  kOperator,  // our attribute ns_dist_op
  kPytorch,   // the PyTorch operator that launched it, by its name, input shapes and types
  kSymbols,   // the tensors and num_ops of a symbolic trace of STAGE
  kWork,      // the same, where they tell no dimensions of a product: by its work
  kRatio,     // the recorded duration times a ratio
  kLaunches,  // of a wait for the host: what the new durations do not hide of its launches
  kHost,      // the host's own work, as recorded
  kKept,      // as recorded
};
inline constexpr std::size_t kAnnotateWays = 8;
std::string_view name_of(AnnotateWay way);

struct AnnotateModel {
  // Of the new GPU, ns; nothing where it cannot be told.
  std::function<std::optional<double>(const Operator& op)> forecast;
  // What `forecast` multiplies products of experts by: the factor that a trace tells (ns_dist_factor) takes its place.
  // Nothing: kernels alone, without the factors of traces.
  std::optional<double> experts = 1;
  // New over recorded duration of a kernel of which only its work is known, FLOP and bytes (0: not known). May be
  // empty.
  std::function<std::optional<double>(double flops, double bytes)> ratio = {};
};

struct AnnotateShare {
  std::uint64_t kernels = 0;
  double recorded_ns = 0, new_ns = 0;
};

struct AnnotateReport {
  std::uint64_t nodes = 0;
  std::array<AnnotateShare, kAnnotateWays> ways{};  // by AnnotateWay
  std::uint64_t waits_kept = 0;                     // waits for the host without a word of its launches, as recorded
  std::uint64_t by_micros = 0;                      // new durations that num_ops does not tell: a roofline has its own
};

// Writes the trace `from` as `to`, plain or gzipped by the name, with durations of its GPU kernels by `model`. Frames
// are patched: duration_micros, and our ns_dist_duration_ns and num_ops where these tell the time too; every other byte
// stays. A call of PyTorch that launched several kernels is forecast once and shared out by their recorded times. In
// traces of STAGE num_ops are multiply-adds and tensor_size elements, which are taken for bf16. Durations are whole
// microseconds, whose remainder is carried along each stream (attribute tid). A wait for the host becomes longer or
// shorter by what the new durations hide of its launches (wait_ns). Errors: those of read_trace and kernel_work; a file
// that cannot be written; one and the same file.
Result<AnnotateReport> annotate(const std::filesystem::path& from, const std::filesystem::path& to,
                                const AnnotateModel& model);

// ---- Repair ----

struct RepairReport {
  std::uint64_t dangling = 0;         // dependencies on nodes that the file does not have: dropped
  std::uint64_t circles = 0;          // dependencies that close a circle, of control where there is one: dropped
  std::uint64_t chained = 0;          // kernels and collectives that now wait for the one before on their stream
  std::uint64_t cpu_collectives = 0;  // which the feeder refuses: the CPU's part becomes a CPU operator
  std::uint64_t not_run = 0;          // metadata and invalid nodes, at which it stops: they become CPU operators
  friend bool operator==(const RepairReport&, const RepairReport&) = default;
};

// Writes the trace `from` as `to`, plain or gzipped by the name, so that ASTRA-Sim's feeder runs it as a GPU did. What
// PyTorch's profiler and Chakra's converter leave out is put back: the order of a stream (attribute tid), which is that
// in which nodes come after all that they depend on, by start time, then by place in the file. Everything else stays
// byte for byte. Errors: as annotate.
Result<RepairReport> repair(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ns_dist
