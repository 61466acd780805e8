#include "data_sheet.h"

#include <fmt/format.h>

#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

// Each field once, for reading, writing and copying: visit(key, member, unit).
template <class SomeGpu, class Visit>
void visit_fields(SomeGpu& gpu, const Visit& visit) {
  using namespace units;
  visit("vendor", gpu.vendor, 0);
  visit("architecture", gpu.architecture, 0);
  visit("compute_capability", gpu.compute_capability, 0);
  visit("process_nm", gpu.process_nm, 0);
  visit("sm_count", gpu.sm_count, 0);
  visit("boost_clock", gpu.boost_clock, Hz);
  for (const DType dtype : kAllDTypes) {
    visit("tensor_" + std::string(name_of(dtype)), gpu.tensor[dtype], FLOP / s);
    visit("vector_" + std::string(name_of(dtype)), gpu.vector[dtype], FLOP / s);
  }
  visit("memory_type", gpu.memory_type, 0);
  visit("memory_bandwidth", gpu.memory_bandwidth, B / s);
  visit("l2_cache", gpu.l2_cache, B);
  visit("shared_memory_per_sm", gpu.shared_memory_per_sm, B);
  visit("board_power", gpu.board_power, W);
}

}  // namespace

Gpu data_sheet_of(const Gpu& gpu) {
  Gpu sheet;
  sheet.id = gpu.id;
  sheet.vendor = gpu.vendor;
  sheet.architecture = gpu.architecture;
  sheet.compute_capability = gpu.compute_capability;
  sheet.process_nm = gpu.process_nm;
  sheet.sm_count = gpu.sm_count;
  sheet.boost_clock = gpu.boost_clock;
  sheet.tensor = gpu.tensor;
  sheet.vector = gpu.vector;
  sheet.memory_type = gpu.memory_type;
  sheet.memory_bandwidth = gpu.memory_bandwidth;
  sheet.l2_cache = gpu.l2_cache;
  sheet.shared_memory_per_sm = gpu.shared_memory_per_sm;
  sheet.board_power = gpu.board_power;
  sheet.flop_energy = gpu.flop_energy;
  return sheet;
}

std::string to_json(const Gpu& sheet) {
  nlohmann::ordered_json json;
  visit_fields(sheet, [&](const std::string& key, const auto& value, auto unit) {
    if constexpr (std::is_same_v<decltype(unit), int>) {
      json[key] = value;
    } else if (value / unit > 0) {  // formats and sizes that the GPU does not have are left out
      json[key] = value / unit;
    }
  });
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
  visit_fields(sheet, [&](const std::string& key, auto& value, auto unit) {
    using Value = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      value = reader.text(key);
    } else if constexpr (std::is_same_v<Value, int>) {
      value = static_cast<int>(reader.integer(key, 0, kMost));
    } else {
      value = reader.number(key, 0, kLargest, Presence::kOptional) * unit;
    }
  });
  if (errors.empty()) return sheet;
  errors.front().hint = "write the weights anew with this version's ns-dist fit";
  return fail(join(std::move(errors)));
}

}  // namespace ns_dist
