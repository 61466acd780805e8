// Runs the nodes below and prints when they end and how long the GPU was busy. TWO_LINES: the way without --wrap.
// INLINED: as a build with link-time optimization would have it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "astra-sim/system/WorkloadLayerHandlerData.hh"
#include "astra-sim/workload/Workload.hh"
#ifdef INLINED
#include "sys.cc"
#endif
#ifdef TWO_LINES
bool ns_dist_issue(AstraSim::Workload*, const std::shared_ptr<Chakra::FeederV3::ETFeederNode>&);
#endif

namespace AstraSim {

Workload::Workload(Sys* on, std::vector<Chakra::FeederV3::ETFeederNode> nodes)
    : et_feeder(new Chakra::ETFeeder(std::move(nodes))), hw_resource(new HardwareResource), sys(on) {}

void Workload::run() {
  for (std::size_t id = 0; id < et_feeder->nodes.size(); ++id) issue(et_feeder->lookupNode(id));
}

void Workload::issue(const std::shared_ptr<Chakra::FeederV3::ETFeederNode>& node) {
#ifdef TWO_LINES
  if (ns_dist_issue(this, node)) return;
#endif
  const Tick ns = node->runtime() * 1000;
  (node->is_cpu_op<bool>(false) ? hw_resource->tics_cpu_ops : hw_resource->tics_gpu_ops) += ns;
  auto* data = new WorkloadLayerHandlerData;
  data->node_id = node->id();
  sys->register_event(this, EventType::General, data, ns);
}

void Workload::call(EventType, CallData* data) { delete static_cast<WorkloadLayerHandlerData*>(data); }

}  // namespace AstraSim

namespace {

// Not a workload: its events pass untouched.
class Other : public AstraSim::Callable {
 public:
  void call(AstraSim::EventType, AstraSim::CallData*) override {}
};

}  // namespace

int main(int argc, char** argv) {
  using Node = Chakra::FeederV3::ETFeederNode;
  const auto node = [](std::uint64_t id, const char* name, std::uint64_t micros) {
    Node out;
    out.node_id = id, out.node_name = name, out.micros = micros;
    return out;
  };
  const std::string op = "gemm dtype=bf16 m=4096 n=8192 k=1024";
  std::vector<Node> nodes = {node(0, "ours", 7),      node(1, "as the first", 7), node(2, "aten::mm", 11),
                             node(3, "unknown", 13),  node(4, "host", 17),        node(5, "roofline encoding", 19),
                             node(6, "slow", 29),     node(7, "symbolic", 23),    node(8, "wait for the host", 200),
                             node(9, "torn wait", 31)};
  nodes[0].attributes["ns_dist_op"] = op;
  nodes[1].attributes["ns_dist_as"] = std::int64_t{0};
  nodes[2].shapes = "[[4096, 1024], [1024, 8192]]";
  nodes[2].types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']";
  nodes[3].attributes["ns_dist_op"] = true;  // of the wrong type
  nodes[4].attributes["is_cpu_op"] = true;
  nodes[8].lists["ns_dist_launches_ns"].doubles = {{500'000}};
  nodes[8].lists["ns_dist_launched"].integers = {{0, 3}};
  nodes[8].lists["ns_dist_launched_deps"].integers = {{0, 1, 0}};
  nodes[9].lists = nodes[8].lists;
  nodes[9].lists["ns_dist_launched_deps"].integers = {{0, 1, 7}};
  nodes[5].attributes = {
      {"num_ops", std::uint64_t{19'000'500}}, {"tensor_size", std::uint64_t{1}}, {"ns_dist_duration_ns", 19'000.0}};
  nodes[6].attributes = {{"ns_dist_op", op}, {"ns_dist_factor", std::string("2")}};
  nodes[7].attributes = {{"op_type", std::string("M")},
                         {"num_ops", std::uint64_t{68'719'476'736}},
                         {"tensor_size", std::uint64_t{16'777'216}}};
  if (argc > 1 && std::strcmp(argv[1], "none") == 0)
    nodes = {node(0, "host", 17)}, nodes[0].attributes["is_cpu_op"] = true;

  AstraSim::Sys sys(8);
  AstraSim::Workload workload(&sys, nodes);
  workload.run();
  Other other;
  sys.register_event(&other, AstraSim::EventType::General, nullptr, 1000);
  std::printf("end %llu busy %llu\n", sys.now, static_cast<unsigned long long>(workload.hw_resource->tics_gpu_ops));
  std::fflush(stdout);
  if (argc > 1 && std::strcmp(argv[1], "abort") == 0) std::abort();
}
