// Kernels of a Chakra trace on three GPUs, in C++: the session closes itself, errors are thrown.
#include <ns_dist_c.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

class Machine {
 public:
  explicit Machine(const std::string& gpu) {
    const std::string field = "machine/gpu=" + gpu;
    const char* fields[] = {field.c_str(), nullptr};
    ns_dist_session* session = nullptr;
    const int status = ns_dist_open(NS_DIST_ABI, fields, &session);
    session_.reset(session);
    if (status != NS_DIST_OK) throw std::runtime_error(ns_dist_error(session));
  }

  // ns of a node as a trace describes it.
  double forecast(const ns_dist_node& node) const {
    ns_dist_forecast out{};
    out.struct_size = sizeof(out);
    if (ns_dist_forecast_node(session_.get(), &node, &out) != NS_DIST_OK) {
      throw std::runtime_error(ns_dist_error(session_.get()));
    }
    return out.ns;
  }

 private:
  struct Close {
    void operator()(ns_dist_session* session) const { ns_dist_close(session); }
  };
  std::unique_ptr<ns_dist_session, Close> session_;
};

}  // namespace

int main() try {
  ns_dist_node product{};
  product.struct_size = sizeof(product);
  product.name = "aten::mm";
  product.input_shapes = "[[4096, 4096], [4096, 16384]]";
  product.input_types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']";
  for (const char* gpu : {"h100-sxm-80gb", "a100-sxm-80gb", "l4"}) {
    std::printf("%-16s %10.1f us\n", gpu, Machine(gpu).forecast(product) * 1e-3);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
