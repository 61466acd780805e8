// Durations for another GPU, written into the frames of a trace; whatever else they hold stays byte for byte.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "flat_node.h"
#include "kernel_work.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/files.h"
#include "ns_dist/host_launches.h"
#include "ns_dist/operator_text.h"
#include "pytorch_operators.h"
#include "silent_protobuf.h"
#include "symbolic_operators.h"
#include "trace_file.h"
#include "wire.h"

namespace ns_dist {
namespace {

using namespace chakra;

using NodeProto = ns_dist_et_def::Node;
using ns_dist_et_def::AttributeProto;
constexpr std::uint32_t kDuration = NodeProto::kDurationMicrosFieldNumber,
                        kDouble = AttributeProto::kDoubleValFieldNumber, kInt64 = AttributeProto::kInt64ValFieldNumber;

// ---- What is known of a kernel ----

struct Kernel {
  std::size_t index = 0;  // of the node in the file
  double recorded_ns = 0;
  std::uint64_t id = 0;
  std::string spec;                         // ns_dist_op
  std::string factors;                      // ns_dist_factor
  std::optional<std::uint64_t> as;          // ns_dist_as: the node that has both
  std::vector<std::uint64_t> dependencies;  // where neither tells the operator: of data, then of control
  std::int64_t lane = 0;                    // tid
  double flops = 0, bytes = 0;              // num_ops, tensor_size; 0: not known
  bool roofline = false;                    // its time is told in num_ops
  bool waits = false;                       // for the host, as one of the waits tells
  std::optional<SymbolicNode> symbols;
};

struct Wait {
  std::size_t kernel = 0;  // into the kernels
  HostWait host;
  std::vector<double> recorded_ns, now_ns;  // of what it launched
};

bool waits_for_launches(const Operator& op) {
  const auto* unknown = std::get_if<UnknownOperator>(&op.kind);
  return unknown != nullptr && unknown->name == kHostLaunches && is_wait(op);
}

struct Launcher {
  std::string call;  // the same of all nodes of one call of the operator
  std::optional<Operator> op;
};

constexpr std::size_t kMostNodes = 20'000'000;  // a new duration and a lane are kept for each

class Annotation {
 public:
  explicit Annotation(const AnnotateModel& model) : model_(model) {}

  Result<void> read(const std::filesystem::path& path) {
    std::size_t index = 0;
    NS_TRY_VOID(read_trace(path, [&](TraceNode&& node) -> Result<void> {
      look_at(index++, node);
      if (index <= kMostNodes) return {};
      return fail({ErrorCode::kInvalidInput, "the trace is too long", path.string(),
                   fmt::format("at most {} nodes", kMostNodes)});
    }));
    new_ns_.assign(index, std::numeric_limits<double>::quiet_NaN());
    lanes_.assign(index, 0);
    roofline_.assign(index, false);
    return {};
  }

  // Errors name the node; the file is left to the caller.
  Result<void> price() {
    struct Call {
      double recorded = 0, kernels = 0;
    };
    std::map<std::string, Call> calls;
    take_specs_of_others();
    const auto launcher_of = [&](const Kernel& kernel) -> const Launcher* {
      if (!kernel.spec.empty()) return nullptr;
      for (const std::uint64_t dependency : kernel.dependencies) {
        if (const auto found = launchers_.find(dependency); found != launchers_.end()) return &found->second;
      }
      return nullptr;
    };
    for (const Kernel& kernel : kernels_) {
      const Launcher* launcher = launcher_of(kernel);
      if (launcher == nullptr) continue;
      calls[launcher->call].recorded += kernel.recorded_ns;
      calls[launcher->call].kernels += 1;
    }
    for (const Kernel& kernel : kernels_) {
      if (kernel.waits) continue;
      std::optional<double> ns;
      AnnotateWay way = AnnotateWay::kOperator;
      bool wait = false;
      if (!kernel.spec.empty()) {
        Result<std::optional<double>> told = forecast_specs(kernel.spec, kernel.factors, &wait);
        if (!told) {
          Error error = std::move(told).error();
          error.where = fmt::format("node {}", kernel.id);
          return fail(std::move(error));
        }
        ns = *told;
      }
      if (const Launcher* launcher = launcher_of(kernel); !ns && launcher != nullptr) {
        way = AnnotateWay::kPytorch;
        const Call& call = calls.at(launcher->call);
        if (const std::optional<double> whole = forecast(to_spec(*launcher->op), *launcher->op)) {
          ns = *whole * (call.recorded > 0 ? kernel.recorded_ns / call.recorded : 1 / call.kernels);
        }
      }
      if (!ns && !wait && kernel.symbols) {
        if (const std::optional<Operator> op = symbolic_operator(*kernel.symbols, sizes_)) {
          way = std::holds_alternative<UnknownOperator>(op->kind) ? AnnotateWay::kWork : AnnotateWay::kSymbols;
          ns = forecast(to_spec(*op), *op);
        }
      }
      if (!ns && !wait && model_.ratio && kernel.recorded_ns > 0) {
        way = AnnotateWay::kRatio;
        if (const std::optional<double> ratio = model_.ratio(kernel.flops, kernel.bytes)) {
          ns = *ratio * kernel.recorded_ns;
        }
      }
      settle(kernel, way, ns);
    }
    return {};
  }

  // Behind `price`: waits take what the new durations of the nodes that they tell of do not hide.
  Result<void> price_waits(const std::filesystem::path& path) {
    if (waits_.empty()) return {};
    std::size_t index = 0;
    NS_TRY_VOID(read_trace(path, [&](TraceNode&& node) -> Result<void> {
      keep_durations(index++, node);
      return {};
    }));
    for (const Wait& wait : waits_) {
      const Kernel& kernel = kernels_[wait.kernel];
      settle(kernel, AnnotateWay::kLaunches, wait_ns(wait.host, kernel.recorded_ns, wait.recorded_ns, wait.now_ns));
    }
    return {};
  }

  Result<void> write(const std::filesystem::path& from, const std::filesystem::path& to) {
    return rewrite_trace(from, to, [this](std::string_view node, std::size_t index, std::string* out) {
      return index < new_ns_.size() && std::isfinite(new_ns_[index]) && patch(node, index, out);
    });
  }

  const AnnotateReport& report() const { return report_; }

 private:
  void look_at(std::size_t index, const TraceNode& node) {
    ++report_.nodes;
    if (node.type != TraceNodeType::kCompute) return;
    if (number_at(node, "is_cpu_op").value_or(0) != 0) {
      Launcher launcher;
      const std::string name = operator_name(node);
      launcher.op = pytorch_operator(name, node.inputs);
      if (const auto exact = number_at(node, "ns_dist_duration_ns"); exact && is_time(*exact)) keep_host(*exact);
      if (!launcher.op) return;
      // A call is cut into "aten::mm(0)", "aten::mm(1)", ... where it launches kernels; they share PyTorch's rf_id.
      const auto record = number_at(node, "rf_id");
      launcher.call = record ? fmt::format("{} {}", name, *record) : fmt::format("node {}", node.id);
      launchers_[node.id] = std::move(launcher);
      return;
    }
    Kernel kernel;
    kernel.index = index;
    kernel.id = node.id;
    kernel.recorded_ns = static_cast<double>(node.duration_micros) * 1000;
    kernel.spec = text_at(node, "ns_dist_op");
    kernel.factors = factors_at(node);
    if (const auto as = number_at(node, "ns_dist_as"); as && is_time(*as)) {
      kernel.as = static_cast<std::uint64_t>(*as);
    }
    kernel.lane = stream_at(node).value_or(0);
    if (kernel.spec.empty() && !kernel.as) {
      kernel.dependencies = node.data_deps;
      kernel.dependencies.insert(kernel.dependencies.end(), node.ctrl_deps.begin(), node.ctrl_deps.end());
    }
    if (!work_is_time(node)) {
      kernel.flops = number_at(node, "num_ops").value_or(0);
      kernel.bytes = number_at(node, "tensor_size").value_or(0);
    }
    if (const auto exact = number_at(node, "ns_dist_duration_ns")) {
      kernel.recorded_ns = is_time(*exact) ? *exact : 0;
      kernel.roofline = work_is_time(node);
    }
    kernel.symbols = symbolic_node(node);
    if (kernel.symbols) sizes_.learn(*kernel.symbols);
    if (std::optional<HostWait> wait = host_wait(node)) kernel.waits = take(*std::move(wait));
    kernels_.push_back(std::move(kernel));
  }

  // Whether it can be followed: each node is launched once.
  bool take(HostWait wait) {
    const auto number = static_cast<std::uint32_t>(waits_.size());
    for (std::size_t i = 0; i < wait.launched.size(); ++i) {
      if (launched_.try_emplace(wait.launched[i], Launched{number, static_cast<std::uint32_t>(i)}).second) continue;
      while (i-- > 0) launched_.erase(wait.launched[i]);
      return false;
    }
    const std::vector<double> none(wait.launched.size(), 0);
    waits_.push_back({kernels_.size(), std::move(wait), none, none});
    return true;
  }

  // Of a node that a wait tells of.
  void keep_durations(std::size_t index, const TraceNode& node) {
    const auto found = launched_.find(node.id);
    if (found == launched_.end()) return;
    Wait& wait = waits_[found->second.wait];
    const double recorded =
        number_at(node, "ns_dist_duration_ns").value_or(static_cast<double>(node.duration_micros) * 1000);
    double& now = wait.now_ns[found->second.place];
    wait.recorded_ns[found->second.place] = now = is_time(recorded) ? recorded : 0;
    if (index < new_ns_.size() && std::isfinite(new_ns_[index])) now = new_ns_[index];
  }

  // The host's own work (an optimizer in its memory), which no GPU makes shorter or longer.
  void keep_host(double ns) {
    AnnotateShare& share = report_.ways[static_cast<std::size_t>(AnnotateWay::kHost)];
    ++share.kernels;
    share.recorded_ns += ns;
    share.new_ns += ns;
  }

  // Without a new duration the recorded one stays.
  void settle(const Kernel& kernel, AnnotateWay way, std::optional<double> ns) {
    if (ns && !std::isfinite(*ns)) ns.reset();
    if (!ns) way = AnnotateWay::kKept;
    AnnotateShare& share = report_.ways[static_cast<std::size_t>(way)];
    ++share.kernels;
    share.recorded_ns += kernel.recorded_ns;
    share.new_ns += ns.value_or(kernel.recorded_ns);
    if (ns && !kernel.roofline) ++report_.by_micros;
    if (ns) new_ns_[kernel.index] = std::clamp(*ns, 0.0, kLongestNs);
    lanes_[kernel.index] = kernel.lane;
    roofline_[kernel.index] = kernel.roofline;
  }

  // A merged trace tells an operator once; the other kernels refer to the node that has it.
  void take_specs_of_others() {
    if (std::none_of(kernels_.begin(), kernels_.end(), [](const Kernel& kernel) { return kernel.as.has_value(); })) {
      return;
    }
    std::unordered_map<std::uint64_t, std::size_t> owners;  // into kernels_, by id; the first of several
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!kernels_[i].as && !kernels_[i].spec.empty()) owners.try_emplace(kernels_[i].id, i);
    }
    for (Kernel& kernel : kernels_) {
      const auto owner = kernel.as ? owners.find(*kernel.as) : owners.end();
      if (owner == owners.end()) continue;
      kernel.spec = kernels_[owner->second].spec;
      kernel.factors = kernels_[owner->second].factors;
    }
  }

  std::optional<double> forecast(const std::string& spec, const Operator& op) {
    const auto [found, added] = known_.try_emplace(spec);
    if (added) found->second = model_.forecast(op);
    return found->second;
  }

  // What the trace's own factor makes of a forecast.
  double factor_of(const Operator& op, double told) const {
    if (!model_.experts) return 1;
    return std::holds_alternative<GroupedGemm>(op.kind) ? told / *model_.experts : told;
  }

  // Of all operators of a chain, or nothing. A chain with a wait keeps its duration where nothing else tells it.
  // Error: factors that are none.
  Result<std::optional<double>> forecast_specs(const std::string& specs, const std::string& factors, bool* wait) {
    const auto [known, added] = specs_.try_emplace(factors.empty() ? specs : specs + "\n" + factors);
    Specs& of = known->second;
    if (added) {
      if (const auto operators = operators_from_specs(specs)) {
        of.wait = std::any_of(operators->begin(), operators->end(), is_wait);
        of.launches = std::any_of(operators->begin(), operators->end(), waits_for_launches);
        of.ns = of.wait ? std::nullopt : std::optional(0.0);
        NS_TRY(const std::vector<double> told, factors_from(factors, operators->size()));
        for (std::size_t i = 0; i < operators->size() && of.ns; ++i) {
          const Operator& op = (*operators)[i];
          const std::optional<double> ns = forecast(to_spec(op), op);
          const double longer = told.empty() ? 1 : factor_of(op, told[i]);
          of.ns = ns ? std::optional(*of.ns + *ns * longer) : std::nullopt;
        }
      }
    }
    *wait = of.wait;
    if (of.launches) ++report_.waits_kept;
    return of.ns;
  }

  // Whole units of a lane's time, so that the running total is never off by more than half a unit.
  std::uint64_t carried(std::map<std::int64_t, double>* remainders, std::int64_t lane, double exact) {
    double& rest = (*remainders)[lane];
    const double whole = std::max(0.0, std::round(exact + rest));
    rest = std::clamp(exact + rest - whole, -1e6, 1e6);
    return static_cast<std::uint64_t>(whole);
  }

  // False where nothing changes.
  bool patch(std::string_view frame, std::size_t index, std::string* out) {
    const double ns = new_ns_[index];
    const std::uint64_t micros = carried(&micros_rest_, lanes_[index], ns * 1e-3);
    std::int64_t work = 0;
    if (roofline_[index]) {
      const std::uint64_t whole = std::max<std::uint64_t>(1, carried(&ns_rest_, lanes_[index], ns));
      work = static_cast<std::int64_t>(std::min<std::uint64_t>(whole, std::uint64_t{1} << 52)) * 1000 + 500;
    }
    out->clear();
    bool changed = false, placed = false;
    WireReader reader(frame);
    WireField field;
    const auto duration = [&] {
      append_tag(kDuration, 0, out);
      append_varint(micros, out);
    };
    while (reader.next(&field)) {
      const std::string_view bytes = frame.substr(field.begin, field.end - field.begin);
      if (field.number == kDuration && field.type == 0) {
        // The last of several holds; all say the same afterwards.
        placed = true;
        if (field.value == micros) {
          out->append(bytes);
        } else {
          changed = true;
          duration();
        }
      } else if (field.number == NodeProto::kAttrFieldNumber && field.type == 2) {
        changed = patch_attribute(field.bytes, bytes, ns, work, out) || changed;
      } else {
        out->append(bytes);
      }
    }
    if (!reader.ok()) return false;
    if (!placed && micros != 0) {
      changed = true;
      duration();
    }
    return changed;
  }

  // Ours that tell the time: ns_dist_duration_ns, and num_ops where that is the time.
  bool patch_attribute(std::string_view message, std::string_view whole, double ns, std::int64_t work,
                       std::string* out) {
    const std::string_view name = name_of_attribute(message);
    const bool exact = name == "ns_dist_duration_ns", told = work != 0 && name == "num_ops";
    if (!exact && !told) {
      out->append(whole);
      return false;
    }
    std::string attribute;
    bool changed = false;
    WireReader reader(message);
    WireField field;
    while (reader.next(&field)) {
      if (exact && field.number == kDouble && field.type == 1) {
        const auto bits = std::bit_cast<std::uint64_t>(ns);
        changed = changed || field.value != bits;
        append_tag(kDouble, 1, &attribute);
        for (unsigned shift = 0; shift < 64; shift += 8) attribute += static_cast<char>((bits >> shift) & 0xffU);
      } else if (told && field.number == kInt64 && field.type == 0) {
        changed = changed || field.value != static_cast<std::uint64_t>(work);
        append_tag(kInt64, 0, &attribute);
        append_varint(static_cast<std::uint64_t>(work), &attribute);
      } else {
        attribute.append(message.substr(field.begin, field.end - field.begin));
      }
    }
    if (!changed) {
      out->append(whole);
      return false;
    }
    append_bytes(NodeProto::kAttrFieldNumber, attribute, out);
    return true;
  }

  const AnnotateModel& model_;
  AnnotateReport report_;
  std::vector<Kernel> kernels_;
  struct Launched {
    std::uint32_t wait = 0, place = 0;  // into waits_, and in its list
  };
  std::vector<Wait> waits_;
  std::unordered_map<std::uint64_t, Launched> launched_;  // by node
  SymbolicSizes sizes_;
  std::unordered_map<std::uint64_t, Launcher> launchers_;         // by node
  std::unordered_map<std::string, std::optional<double>> known_;  // by operator
  struct Specs {
    std::optional<double> ns;
    bool wait = false;
    bool launches = false;  // a wait for the host's
  };
  std::unordered_map<std::string, Specs> specs_;  // by ns_dist_op and ns_dist_factor
  std::vector<double> new_ns_;                    // by node; NaN: as it is
  std::vector<std::int64_t> lanes_;               // by node
  std::vector<bool> roofline_;                    // by node
  std::map<std::int64_t, double> micros_rest_, ns_rest_;
};

}  // namespace

std::string_view name_of(AnnotateWay way) {
  constexpr std::string_view kNames[] = {kOperatorAttribute,   "PyTorch operator", "STAGE symbols", "STAGE work",
                                         "ratio of rooflines", kToldByLaunches,    "host's work",   "kept"};
  return kNames[static_cast<std::size_t>(way)];
}

Result<AnnotateReport> annotate(const std::filesystem::path& from, const std::filesystem::path& to,
                                const AnnotateModel& model) {
  const SilentProtobuf silent;
  Annotation annotation(model);
  NS_TRY_VOID(annotation.read(from));
  if (Result<void> priced = annotation.price(); !priced) {
    Error error = std::move(priced).error();
    error.where = fmt::format("{}, {}", from.string(), error.where);
    return fail(std::move(error));
  }
  NS_TRY_VOID(annotation.price_waits(from));
  NS_TRY_VOID(annotation.write(from, to));
  return annotation.report();
}

}  // namespace ns_dist
