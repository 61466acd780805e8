// Catalog files and prices: any text is either refused, with a message for each mistake, or read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ns_dist/catalog.h"
#include "ns_dist/time_to_train.h"

namespace {

template <class T>
void check(const ns_dist::Result<T>& result) {
  if (result) return;
  NS_EXPECTS(!result.error().message.empty());
  NS_EXPECTS(result.error().where.starts_with("input.json"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(ns_dist::read_gpu(text, "input.json"));
  const auto model = ns_dist::read_model(text, "input.json");
  check(model);
  // Any layer has a kind.
  for (std::int64_t layer = 0; model && layer < std::min<std::int64_t>(model->layers, 100); ++layer) {
    ns_dist::layer_kind(*model, layer);
  }
  check(ns_dist::read_fabric(text, "input.json"));
  check(ns_dist::read_runs(text, "input.json"));
  check(ns_dist::read_framework(text, "input.json"));
  check(ns_dist::read_prices(text, "input.json"));
  return 0;
}
