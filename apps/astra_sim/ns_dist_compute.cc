// ASTRA-Sim's kernels, forecast by ns-dist while it runs. Copy this file into astra-sim/workload/ and link with
//
//   -Wl,--undefined=ns_dist_compute,--wrap=_ZN8AstraSim3Sys14register_eventEPNS_8CallableENS_9EventTypeEPNS_8CallDataEy
//
// which needs no change of ASTRA-Sim: its build takes every .cc of that folder, and CMake takes the option from
// LDFLAGS. Then NS_DIST_GPU=h100 in the environment names the GPU (an id of `ns-dist list gpus`, or a JSON file), and
// NS_DIST_LIBRARY the library where the loader does not find libns_dist_c.so by itself. Without NS_DIST_GPU ASTRA-Sim
// answers as it does without this file.
//
// Workload::issue_replay and issue_comp hand every kernel's duration to Sys::register_event, which another file
// defines, so the linker can put the function below in its place. A kernel whose node does not tell its operator keeps
// the duration that came in. Written for ASTRA-Sim of March 2026 (518bd513) and Chakra's feeder version 3.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "astra-sim/system/Sys.hh"
#include "astra-sim/system/WorkloadLayerHandlerData.hh"
#include "astra-sim/workload/Workload.hh"
#include "ns_dist_c.h"

namespace {

using Node = Chakra::FeederV3::ETFeederNode;

[[noreturn]] void stop(const std::string& problem) {
  std::fprintf(stderr, "ns-dist: %s\n", problem.c_str());
  std::fflush(stderr);
  std::_Exit(EXIT_FAILURE);
}

// An attribute as "name=value", where the node has it as T.
template <class T>
void add(const Node& node, const char* name, std::vector<std::string>* out) {
  if (!node.has_attr(name)) return;
  try {
    if constexpr (std::is_same_v<T, std::string>) {
      out->push_back(std::string(name) + "=" + node.get_attr<std::string>(name));
    } else {
      out->push_back(std::string(name) + "=" + std::to_string(node.get_attr<T>(name)));
    }
  } catch (const std::exception&) {  // of another type
  }
}

bool is_kernel(const Node& node) {
  return node.type() == ChakraProtoMsg::NodeType::COMP_NODE && !node.is_cpu_op<bool>(false);
}

// Made when the program starts, so that mistakes end it at once, and gone when it ends.
class Forecaster {
 public:
  Forecaster() {
    const char* gpu = std::getenv("NS_DIST_GPU");
    if (gpu == nullptr || *gpu == '\0') return;
    gpu_ = gpu;
    open(gpu_);
    // ASTRA-Sim with a network of one dimension frees memory twice at its end (March 2026), which aborts it.
    self_ = this;
    std::signal(SIGABRT, [](int signal) {
      self_->summarize();
      std::signal(signal, SIG_DFL);
      std::raise(signal);
    });
  }
  ~Forecaster() {
    if (!on()) return;
    summarize();
    close_(session_);
  }
  Forecaster(const Forecaster&) = delete;
  Forecaster& operator=(const Forecaster&) = delete;

  bool on() const { return session_ != nullptr; }

  // ns; `otherwise` where the node's operator is not known.
  AstraSim::Tick duration(const AstraSim::Workload& workload, const Node& node, AstraSim::Tick otherwise) {
    ++calls_;
    const double ns = node.has_attr("ns_dist_launches_ns") ? wait_ns(workload, node) : kernel_ns(workload, node);
    if (ns >= 0) return static_cast<AstraSim::Tick>(std::max(1.0, std::round(ns)));
    if (++kept_ == 1) first_kept_ = node.name() + ": " + error_(session_);
    return otherwise;
  }

 private:
  // This and the next two are negative where the answer is not known.
  double kernel_ns(const AstraSim::Workload& workload, const Node& node) {
    std::vector<std::string> attributes;
    for (const char* each : {"ns_dist_op", "ns_dist_factor"}) add<std::string>(node, each, &attributes);
    if (attributes.empty() && node.has_attr("ns_dist_as")) {  // another node with the same operators tells them
      try {
        const auto id = static_cast<std::uint64_t>(node.get_attr<std::int64_t>("ns_dist_as"));
        const auto other = workload.et_feeder->lookupNode(id);
        for (const char* each : {"ns_dist_op", "ns_dist_factor"}) add<std::string>(*other, each, &attributes);
      } catch (const std::exception&) {  // of another type, or no such node
      }
    }
    std::string name, values, shapes, types;
    if (attributes.empty()) {
      name = node.name(), values = node.get_inputs_values();
      shapes = node.get_inputs_shapes(), types = node.get_inputs_types();
      add<std::string>(node, "op_schema", &attributes);
      add<std::string>(node, "op_type", &attributes);  // STAGE's: its num_ops and tensor_size are no FLOP and bytes
      add<std::uint64_t>(node, "num_ops", &attributes);
      add<std::uint64_t>(node, "tensor_size", &attributes);
      add<double>(node, "ns_dist_duration_ns", &attributes);
    }
    ns_dist_node asked = {};
    asked.name = name.c_str(), asked.input_values = values.c_str();
    asked.input_shapes = shapes.c_str(), asked.input_types = types.c_str();
    asked.ranks = workload.sys->total_nodes;
    return forecast_ns(asked, attributes);
  }

  // A wait for the host, which hides behind what the host launched before: kernels as forecast, all else as recorded.
  double wait_ns(const AstraSim::Workload& workload, const Node& node) {
    std::vector<std::string> attributes = {"ns_dist_duration_ns=" + text_of(recorded_ns(node))};
    std::vector<double> recorded, now;
    add<double>(node, "ns_dist_launch_ns", &attributes);
    for (const char* each :
         {"ns_dist_launches_ns", "ns_dist_launched", "ns_dist_launched_deps", "ns_dist_read_before"}) {
      if (!node.has_attr(each)) continue;
      const auto list = node.get_attr_msg(each);
      std::string text;
      for (const double value : list.double_list().values()) text += "," + text_of(value);
      for (const std::int64_t value : list.int64_list().values()) {
        text += "," + std::to_string(value);
        if (std::strcmp(each, "ns_dist_launched") != 0) continue;
        recorded.push_back(0), now.push_back(0);
        try {
          const auto launched = workload.et_feeder->lookupNode(static_cast<std::uint64_t>(value));
          recorded.back() = now.back() = recorded_ns(*launched);
          const double ns = is_kernel(*launched) ? kernel_ns(workload, *launched) : -1;
          if (ns >= 0) now.back() = ns;
        } catch (const std::exception&) {  // no such node
        }
      }
      attributes.push_back(std::string(each) + "=" + (text.empty() ? text : text.substr(1)));
    }
    ns_dist_node asked = {};
    asked.launched_ns = recorded.data(), asked.launched_now_ns = now.data();
    return forecast_ns(asked, attributes);
  }

  double forecast_ns(ns_dist_node asked, const std::vector<std::string>& attributes) {
    std::vector<const char*> list;
    for (const std::string& attribute : attributes) list.push_back(attribute.c_str());
    list.push_back(nullptr);
    asked.struct_size = sizeof(asked);
    asked.attributes = list.data();
    ns_dist_forecast answer = {};
    answer.struct_size = sizeof(answer);
    return forecast_(session_, &asked, &answer) == NS_DIST_OK && answer.ns < 1e18 ? answer.ns : -1;
  }

  static double recorded_ns(const Node& node) {
    try {
      if (node.has_attr("ns_dist_duration_ns")) return node.get_attr<double>("ns_dist_duration_ns");
    } catch (const std::exception&) {  // of another type
    }
    return static_cast<double>(node.runtime()) * 1000;
  }

  static std::string text_of(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.17g", value);
    return text;
  }

  void open(const std::string& gpu) {
    const char* named = std::getenv("NS_DIST_LIBRARY");
    const std::string name =
        named != nullptr && *named != '\0' ? named : "libns_dist_c.so." + std::to_string(NS_DIST_ABI);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      stop("NS_DIST_GPU is set, and the library cannot be loaded: " + std::string(reason == nullptr ? name : reason) +
           "; set NS_DIST_LIBRARY to the path of libns_dist_c.so, or unset NS_DIST_GPU");
    }
    decltype(&ns_dist_abi) abi = nullptr;
    find(library, name, "ns_dist_abi", &abi);
    if (abi() != NS_DIST_ABI) {
      stop(name + " has version " + std::to_string(abi()) +
           " of the C interface, and this ns_dist_compute.cc was written for " + std::to_string(NS_DIST_ABI) +
           "; build ASTRA-Sim with the ns_dist_compute.cc that came with the library");
    }
    decltype(&ns_dist_open) open_session = nullptr;
    find(library, name, "ns_dist_open", &open_session);
    find(library, name, "ns_dist_close", &close_);
    find(library, name, "ns_dist_error", &error_);
    find(library, name, "ns_dist_forecast_node", &forecast_);
    const std::string field = "machine/gpu=" + gpu;
    const char* fields[] = {field.c_str(), nullptr};
    if (open_session(NS_DIST_ABI, fields, &session_) != NS_DIST_OK) {
      stop("NS_DIST_GPU=" + gpu + ": " + (session_ == nullptr ? "memory is exhausted" : error_(session_)));
    }
  }

  template <class Function>
  static void find(void* library, const std::string& name, const char* symbol, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library, symbol));
    if (*out == nullptr) stop(name + " is no libns_dist_c.so: it has no function " + symbol);
  }

  // Allocates nothing: it may run while memory is damaged.
  void summarize() {
    if (said_) return;
    said_ = true;
    char text[768];
    if (calls_ == 0) {
      std::snprintf(text, sizeof(text),
                    "ns-dist: 0 CALLS: no kernel was forecast for %s. The traces have no kernels, or ASTRA-Sim was "
                    "built with link-time optimization or without the option --wrap (see ns_dist_compute.cc)\n",
                    gpu_.c_str());
    } else {
      std::snprintf(text, sizeof(text),
                    "ns-dist: %llu of %llu kernels forecast for %s; %llu keep their duration%s%.300s\n", calls_ - kept_,
                    calls_, gpu_.c_str(), kept_, kept_ == 0 ? "" : ", the first one is ", first_kept_.c_str());
    }
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::char_traits<char>::length(text));
  }

  static inline Forecaster* self_ = nullptr;
  std::string gpu_, first_kept_;
  unsigned long long calls_ = 0, kept_ = 0;
  bool said_ = false;
  ns_dist_session* session_ = nullptr;
  decltype(&ns_dist_close) close_ = nullptr;
  decltype(&ns_dist_error) error_ = nullptr;
  decltype(&ns_dist_forecast_node) forecast_ = nullptr;
};

Forecaster forecaster;

}  // namespace

extern "C" {

char ns_dist_compute = 0;  // --undefined asks for it, so that this file is linked even where nothing calls it

// Sys::register_event itself; missing where the linker was not told to wrap it.
void __real__ZN8AstraSim3Sys14register_eventEPNS_8CallableENS_9EventTypeEPNS_8CallDataEy(
    AstraSim::Sys* sys, AstraSim::Callable* callable, AstraSim::EventType event, AstraSim::CallData* data,
    AstraSim::Tick ns) __attribute__((weak));

void __wrap__ZN8AstraSim3Sys14register_eventEPNS_8CallableENS_9EventTypeEPNS_8CallDataEy(AstraSim::Sys* sys,
                                                                                         AstraSim::Callable* callable,
                                                                                         AstraSim::EventType event,
                                                                                         AstraSim::CallData* data,
                                                                                         AstraSim::Tick ns) {
  auto* workload = forecaster.on() && data != nullptr && event == AstraSim::EventType::General
                       ? dynamic_cast<AstraSim::Workload*>(callable)
                       : nullptr;
  if (workload != nullptr) {
    const auto node = workload->et_feeder->lookupNode(static_cast<AstraSim::WorkloadLayerHandlerData*>(data)->node_id);
    if (is_kernel(*node)) {
      const AstraSim::Tick forecast = forecaster.duration(*workload, *node, ns);
      workload->hw_resource->tics_gpu_ops += forecast - ns;  // what came in is counted already
      ns = forecast;
    }
  }
  __real__ZN8AstraSim3Sys14register_eventEPNS_8CallableENS_9EventTypeEPNS_8CallDataEy(sys, callable, event, data, ns);
}

}  // extern "C"

// For linkers without --wrap: two lines in ASTRA-Sim's Workload.cc. Above Workload::issue
//
//   bool ns_dist_issue(AstraSim::Workload*, const std::shared_ptr<Chakra::FeederV3::ETFeederNode>&);
//
// and first in its branch of COMP_NODE
//
//   if (ns_dist_issue(this, node)) return;
//
// False where the kernel keeps its duration: then ASTRA-Sim goes on.
bool ns_dist_issue(AstraSim::Workload* workload, const std::shared_ptr<Node>& node) {
  if (!forecaster.on() || !is_kernel(*node)) return false;
  const AstraSim::Tick ns = forecaster.duration(*workload, *node, 0);
  if (ns == 0) return false;
  auto* data = new AstraSim::WorkloadLayerHandlerData;
  data->node_id = node->id();
  workload->hw_resource->tics_gpu_ops += ns;
  workload->sys->register_event(workload, AstraSim::EventType::General, data, ns);
  return true;
}
