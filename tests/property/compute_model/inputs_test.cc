// A forecast is a function of the GPU's description, the operator and the mode: nothing else moves it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ns_dist/catalog.h"
#include "ns_dist/compute_model.h"

namespace ns_dist {
namespace {

// A folder on NS_DIST_PATH whose H200 has another memory than the catalog's.
class OtherCatalog {
 public:
  OtherCatalog() {
    folder_ = std::filesystem::temp_directory_path() / ("ns_dist_inputs_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "gpus");
    std::ifstream in(std::filesystem::path(NS_DIST_SOURCE_DIR) / "configs/gpus/h200-sxm.json");
    std::stringstream text;
    text << in.rdbuf();
    std::string changed = text.str();
    const std::string bandwidth = "\"4.8 TB/s\"";
    const std::size_t at = changed.find(bandwidth);
    EXPECT_NE(at, std::string::npos);
    if (at != std::string::npos) changed.replace(at, bandwidth.size(), "\"2.4 TB/s\"");
    std::ofstream(folder_ / "gpus/h200-sxm.json") << changed;
    setenv("NS_DIST_PATH", folder_.c_str(), 1);
  }
  ~OtherCatalog() {
    unsetenv("NS_DIST_PATH");
    std::filesystem::remove_all(folder_);
  }

 private:
  std::filesystem::path folder_;
};

RC_GTEST_PROP(Inputs, AnotherCatalogDoesNotMoveAForecast, ()) {
  const char* const id = *rc::gen::element("h100-sxm-80gb", "h20", "gh200-96gb", "l4", "mi300x");
  const Mode mode = *rc::gen::element(Mode::kBurst, Mode::kSustained);
  const auto size = [] { return *rc::gen::inRange<std::int64_t>(1, 10'000); };
  const Operator op = *rc::gen::element(Operator{Gemm{.m = size(), .n = size(), .k = size()}, DType::kBf16},
                                        Operator{Softmax{.rows = size(), .columns = size()}, DType::kFp16});
  const Gpu gpu = *Catalog::built_in().gpu(id);
  const auto usual = (*make_compute_model(gpu, {.mode = mode}))->forecast(op);
  const OtherCatalog other;
  RC_ASSERT(Catalog::standard().gpu("h200-sxm")->memory_bandwidth < 3 * units::TB / units::s);
  const auto again = (*make_compute_model(gpu, {.mode = mode}))->forecast(op);
  RC_ASSERT(usual.has_value() && again.has_value());
  RC_ASSERT(usual->latency == again->latency);
  RC_ASSERT(usual->low == again->low && usual->high == again->high && usual->power == again->power);
  RC_ASSERT(usual->method == again->method);
}

}  // namespace
}  // namespace ns_dist
