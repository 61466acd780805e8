#include "data_sheet.h"

#include <fmt/format.h>

#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

// Each field once, for reading, writing and copying: visit(key, unit, member of each GPU...).
template <class Visit, class... SomeGpu>
void visit_fields(const Visit& visit, SomeGpu&... gpus) {
  using namespace units;
  visit("vendor", 0, gpus.vendor...);
  visit("architecture", 0, gpus.architecture...);
  visit("compute_capability", 0, gpus.compute_capability...);
  visit("process_nm", 0, gpus.process_nm...);
  visit("sm_count", 0, gpus.sm_count...);
  visit("boost_clock", Hz, gpus.boost_clock...);
  for (const DType dtype : kAllDTypes) {
    visit("tensor_" + std::string(name_of(dtype)), FLOP / s, gpus.tensor[dtype]...);
    visit("vector_" + std::string(name_of(dtype)), FLOP / s, gpus.vector[dtype]...);
  }
  visit("memory_type", 0, gpus.memory_type...);
  visit("memory_bandwidth", B / s, gpus.memory_bandwidth...);
  visit("l2_cache", B, gpus.l2_cache...);
  visit("shared_memory_per_sm", B, gpus.shared_memory_per_sm...);
  visit("board_power", W, gpus.board_power...);
}

}  // namespace

Gpu data_sheet_of(const Gpu& gpu) {
  Gpu sheet;
  sheet.id = gpu.id;
  visit_fields([](const std::string&, auto, auto& to, const auto& from) { to = from; }, sheet, gpu);
  sheet.flop_energy = gpu.flop_energy;
  return sheet;
}

bool run_kernels_alike(const Gpu& a, const Gpu& b) {
  const auto kernels_of = [](const Gpu& gpu) {
    Gpu sheet = data_sheet_of(gpu);
    sheet.id.clear();
    sheet.tensor[DType::kFp64] = sheet.vector[DType::kFp64] = FlopsPerSecond();
    return sheet;
  };
  return kernels_of(a) == kernels_of(b);
}

std::string to_json(const Gpu& sheet) {
  nlohmann::ordered_json json;
  const auto write = [&](const std::string& key, auto unit, const auto& value) {
    if constexpr (std::is_same_v<decltype(unit), int>) {
      json[key] = value;
    } else if (value / unit > 0) {  // formats and sizes that the GPU does not have are left out
      json[key] = value / unit;
    }
  };
  visit_fields(write, sheet);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<Gpu> read_data_sheet(std::string_view text, std::string id, const std::string& where) {
  constexpr double kLargest = 1e30;  // of any quantity in base units
  constexpr std::int64_t kMost = 1'000'000;
  const std::string place = fmt::format("{}: the data sheet of {}", where, shortened(id));
  NS_TRY(const nlohmann::ordered_json root, parse_json(text, place));
  std::vector<Error> errors;
  JsonReader reader(root, place, errors);
  Gpu sheet;
  sheet.id = std::move(id);
  const auto read = [&](const std::string& key, auto unit, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      value = reader.text(key);
    } else if constexpr (std::is_same_v<Value, int>) {
      value = static_cast<int>(reader.integer(key, 0, kMost));
    } else {
      value = reader.number(key, 0, kLargest, Presence::kOptional) * unit;
    }
  };
  visit_fields(read, sheet);
  if (errors.empty()) return sheet;
  errors.front().hint = "write the weights anew with this version's ns-dist fit";
  return fail(join(std::move(errors)));
}

}  // namespace ns_dist
